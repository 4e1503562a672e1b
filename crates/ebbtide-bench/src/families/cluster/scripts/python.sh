# python3: 4 threads build and drop dicts and lists; $1 scales.
set -eu
python=/usr/bin/python3
[ -x $python ] || python=$(command -v python3) || { echo 'python3 is missing (apt-get install python3)' >&2; exit 1; }
exec $python - "$1" <<'END'
import random, sys, threading

rounds = 3 * int(sys.argv[1])
sums = [0] * 4

def work(which):
    draw = random.Random(which)
    for _ in range(rounds):
        table = {n: [n] * (n % 40) for n in range(15000)}
        words = [str(n) * 3 for n in range(30000)]
        for key in draw.sample(range(15000), 7500):
            del table[key]
        sums[which] += sum(len(row) for row in table.values()) + sum(map(len, words[::7]))
        del table, words

threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
for t in threads: t.start()
for t in threads: t.join()
print("done", sum(sums))
END
