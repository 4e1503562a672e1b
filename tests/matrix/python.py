# Objects, threads, children by fork and by vfork (subprocess), and modules in C.
import hashlib
import json
import os
import subprocess
import sys
import threading

tree = {str(n): {"list": list(range(n % 50)), "text": "y" * (n % 300)} for n in range(4000)}
tree = json.loads(json.dumps(tree))
total = sum(sum(node["list"]) + len(node["text"]) for node in tree.values())

sums = [0] * 4


def work(k):
    for round in range(20):
        sums[k] += len(b"".join(bytes([k]) * (j % 500) for j in range(400)))


threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
for thread in threads:
    thread.start()
said = [subprocess.run(["/box/busybox", "echo", str(n)], stdout=subprocess.PIPE).stdout.decode().strip() for n in range(8)]
for thread in threads:
    thread.join()

reader, writer = os.pipe()
child = os.fork()
if child == 0:
    os.write(writer, str(len(list(map(str, range(20000))))).encode())
    os._exit(0)
status = os.waitpid(child, 0)[1]
counted = os.read(reader, 100).decode()
digest = hashlib.sha256(b"z" * 1000000).hexdigest()[:16]
answer = [total, sums, said, status, counted, digest]
expected = [2156000, [1596000] * 4, list("01234567"), 0, "20000", "9b7ae5acf75b8cc3"]
if answer != expected:
    sys.exit("FAIL: " + repr(answer))
print("ok")
