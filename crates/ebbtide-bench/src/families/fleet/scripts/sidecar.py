# A sidecar: answers with its metrics, keeps a window of them, and ships them to a filter on stdout in packed batches.
import collections, os, sys, zlib
from serve import serve

lines, window, batch = (int(os.environ[name]) for name in ("LINES", "WINDOW", "BATCH"))
kept, waiting = collections.deque(maxlen=window), []

def work(n):
    text = "".join('requests_total{path="/%d",code="%d"} %d\n' % (k % 40, 200 + k % 5, k * n % 9973) for k in range(lines))
    kept.append(text)
    waiting.append(text)
    if len(waiting) == batch:
        packed = zlib.compress("".join(waiting).encode())
        waiting.clear()
        print("batch", len(packed), flush=True)
    return text

serve(sys.argv[1], work)
