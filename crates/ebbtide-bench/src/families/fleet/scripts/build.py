# The agent of a build server: a job compiles files of C, some at a time, and keeps the text of the last builds.
import collections, os, shutil, subprocess
from serve import serve

files, at_once, functions, kept = (int(os.environ[name]) for name in ("FILES", "AT_ONCE", "FUNCTIONS", "KEPT"))
logs = collections.deque(maxlen=kept)
step = """static int step_%d(int x, const char *s) {
  int t[64];
  for (int i = 0; i < 64; i++) t[i] = (i * x + %d) %% 97;
  for (int i = 1; i < 64; i++) if (t[i] > t[i - 1] && strlen(s) > %d) x += t[i] * %d; else x ^= t[i - 1];
  return x & 0xffff;
}
"""

def source(n):
    steps = "".join(step % (k, k + n, k % 7, k) for k in range(functions))
    calls = "".join('  x = step_%d(x, "some text");\n' % k for k in range(functions))
    return "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n%sint file_%d(int x) {\n%s  return x;\n}\n" % (steps, n, calls)

def work(n):
    shutil.rmtree("work", ignore_errors=True)
    os.mkdir("work")
    running, log = [], []
    def finish(one):
        said, _ = one.communicate()
        log.append(said)
        if one.returncode:
            raise RuntimeError("cc failed: %s" % said)
    for k in range(files):
        name = "work/f%d.c" % k
        with open(name, "w") as file:
            file.write(source(n * files + k))
        if len(running) == at_once:
            finish(running.pop(0))
        command = ["cc", "-O2", "-g", "-c", name, "-o", "work/f%d.o" % k]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True))
    for one in running:
        finish(one)
    log.append(source(n))
    logs.append("".join(log))
    return "%d objects" % sum(name.endswith(".o") for name in os.listdir("work"))

serve("s0", work)
