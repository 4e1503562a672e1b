# A web application: picks rows of a table, passes them through JSON, writes a page, and keeps a part of it in a session.
require "json"

ROWS, PAGE, SESSIONS, SESSION_S = %w[ROWS PAGE SESSIONS SESSION_S].map { |name| ENV.fetch(name).to_i }
TABLE = (0...ROWS).map { |n| { "id" => n, "name" => "product #{n * 7919 % ROWS}", "text" => "x" * (n % 300), "price" => n % 977 } }
sessions, lock = {}, Mutex.new

run(lambda do |env|
  type = { "content-type" => "text/html" }
  next [200, type, ["ok"]] if env["PATH_INFO"] == "/ready"
  n = env["PATH_INFO"][1..].to_i
  rows = (0...PAGE).map { |i| TABLE[(n * 31 + i * 17) % ROWS] }.sort_by { |row| [row["price"], row["id"]] }
  page = +"<table>"
  JSON.parse(JSON.generate(rows)).each do |row|
    page << "<tr><td>#{row["id"]}</td><td>#{row["name"].upcase}</td><td>#{row["text"]}</td><td>#{row["price"]}</td></tr>\n"
  end
  page << "</table>"
  lock.synchronize do
    now = Process.clock_gettime(Process::CLOCK_MONOTONIC)
    sessions.delete(n % (2 * SESSIONS))
    sessions[n % (2 * SESSIONS)] = [now, page[0, n * 613 % 16_000]]
    sessions.shift while sessions.size > SESSIONS || sessions.first[1][0] < now - SESSION_S
  end
  [200, type, [page]]
end)
