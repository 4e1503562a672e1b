# what: memcached: 4 threads, 8 clients, values of all sizes, more than fit
# needs: memcached:memcached python3:python3
# loaded: memcached
# limit_s: 600

memcached -s "$PWD/s" -m 24 -t 4 -u nobody > log 2>&1 &
pid=$!
trap 'kill $pid 2> /dev/null' EXIT
for _ in $(seq 200); do
    [ ! -S s ] || break
    sleep 0.05
done
cat > client.py <<'END'
import socket, threading
wrong = []
def value(n): return (b"%d," % n) * (1 + n * 7919 % 3000)
def client(first):
    s = socket.socket(socket.AF_UNIX); s.connect("s"); f = s.makefile("rwb")
    for n in range(first, 8000, 8):
        v = value(n)
        f.write(b"set k%d 0 0 %d\r\n%s\r\nget k%d\r\n" % (n, len(v), v, n)); f.flush()
        if f.readline() != b"STORED\r\n": wrong.append(n); continue
        line = f.readline()
        if line != b"END\r\n":
            got = f.read(int(line.split()[3])); f.readline(); f.readline()
            if got != v: wrong.append(n)
        if n % 5 == 0:
            f.write(b"delete k%d\r\n" % n); f.flush(); f.readline()
all = [threading.Thread(target=client, args=(i,)) for i in range(8)]
[t.start() for t in all]; [t.join() for t in all]
print("wrong", wrong)
END
python3 client.py
kill $pid
wait $pid || true
trap - EXIT
