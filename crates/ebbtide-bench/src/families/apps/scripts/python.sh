# python3 builds dicts, lists and JSON, and keeps a tenth; $1 scales.
set -eu
python=/usr/bin/python3
[ -x $python ] || python=$(command -v python3)
echo "@watch $$"
exec $python -c '
import json, random, sys

rounds, kept, total = 2 * int(sys.argv[1]), [], 0
draw = random.Random(1)
for _ in range(rounds):
    rows = [{"id": n, "name": "row %d" % n, "values": [n, n * 2.5, None], "text": "x" * (n % 600)} for n in range(40000)]
    text = json.dumps(rows)
    rows = json.loads(text)
    draw.shuffle(rows)
    total += len(text)
    kept += rows[:: 10 * rounds]
    table = {row["name"]: row for row in rows}
    total += len(table)
    del rows, table, text
print("@rest", flush=True)
sys.stdin.readline()
print("done", total + len(kept))
' "$1"
