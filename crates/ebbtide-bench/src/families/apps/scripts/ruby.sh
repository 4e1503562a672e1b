# ruby builds hashes and strings, and keeps a tenth; $1 scales.
set -eu
echo "@watch $$"
exec ruby -e '
rounds, kept, total = 3 * ARGV[0].to_i, [], 0
rounds.times do |round|
  rows = (0...40000).map { |n| { "id" => n, name: "row #{n * round}", values: [n, n * 2.5], text: "x" * (n % 300) } }
  rows = rows.sort_by { |row| row["id"] * 7919 % 40009 }
  table = rows.group_by { |row| row["id"] % 1000 }
  total += table.sum { |_, group| group.sum { |row| row[:text].size } }
  (0...rows.size).step(10 * rounds) { |n| kept << rows[n] }
  rows = table = nil
end
GC.start
puts "@rest"
$stdout.flush
$stdin.gets
puts "done #{total + kept.size}"
' "$1"
