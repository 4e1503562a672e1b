# A JSON server of python3 with a store in memory answers 4 clients, then loses most of the store; $1 scales.
set -eu
python=/usr/bin/python3
[ -x $python ] || python=$(command -v python3)
dir=$(mktemp -d)
server=
trap 'exit 143' HUP INT TERM
trap '[ -z "$server" ] || kill -9 $server 2>/dev/null || :; rm -rf "$dir"' EXIT
cat >"$dir/server.py" <<'END'
import http.server, json, os, socketserver, sys

store = {}

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        for row in asked["rows"]:
            store[row["key"]] = row
        for key in asked["drop"]:
            store.pop(key, None)
        said = json.dumps({"size": len(store), "rows": [store[key] for key in asked["read"] if key in store]}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True

server = Server(("127.0.0.1", 0), Handler)
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(server.server_address[1]))
os.rename(sys.argv[1] + ".new", sys.argv[1])
server.serve_forever()
END
cat >"$dir/client.py" <<'END'
import http.client, json, sys, threading

port, rounds = int(sys.argv[1]), 100 * int(sys.argv[2])
sums = [0] * 4

def work(which):
    link = http.client.HTTPConnection("127.0.0.1", port)
    def ask(rows, drop, read):
        link.request("POST", "/", json.dumps({"rows": rows, "drop": drop, "read": read}))
        return json.loads(link.getresponse().read())
    key = lambda n: "%d/%d" % (which, n)
    for round in range(rounds):
        new = range(round * 50, round * 50 + 50)
        rows = [{"key": key(n), "text": "x" * (n % 700), "values": list(range(n % 20))} for n in new]
        sums[which] += len(ask(rows, [], [key(n) for n in new])["rows"])
    drop = [key(n) for n in range(rounds * 50) if n % 10]
    for at in range(0, len(drop), 500):
        ask([], drop[at:at + 500], [])

threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
for t in threads: t.start()
for t in threads: t.join()
print(sum(sums))
END
$python "$dir/server.py" "$dir/port" &
server=$!
echo "@watch $server"
tries=0
until [ -s "$dir/port" ]; do
    tries=$((tries + 1)); [ $tries -lt 500 ] || { echo 'the server does not start' >&2; exit 1; }
    sleep 0.02
done
sum=$(env -u LD_PRELOAD $python "$dir/client.py" "$(cat "$dir/port")" "$1")
echo @rest
read -r _
echo "done $sum"
