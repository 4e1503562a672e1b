# gcc builds a program of many files, 4 at a time; $1 scales.
set -eu
command -v cc >/dev/null || { echo 'cc is missing (apt-get install gcc)' >&2; exit 1; }
dir=$(mktemp -d)
trap 'exit 143' HUP INT TERM
trap 'rm -rf "$dir"' EXIT
cd "$dir"
files=$((6 * $1))
n=0
while [ $n -lt $files ]; do
    {
        echo '#include <stdio.h>'; echo '#include <stdlib.h>'; echo '#include <string.h>'; echo '#include <math.h>'
        k=0
        while [ $k -lt 60 ]; do
            echo "static int step_${n}_$k(int x, const char *s) { int t[64]; for (int i = 0; i < 64; i++) t[i] = (i * x + $k) % 97;
                  for (int i = 1; i < 64; i++) if (t[i] > t[i - 1] && strlen(s) > $k % 7) x += t[i] * $k; else x ^= t[i - 1]; return x & 0xffff; }"
            k=$((k + 1))
        done
        echo "int file_$n(int x) {"
        k=0
        while [ $k -lt 60 ]; do echo "x = step_${n}_$k(x, \"some text\");"; k=$((k + 1)); done
        echo 'return x; }'
    } >f$n.c
    n=$((n + 1))
done
{
    n=0
    while [ $n -lt $files ]; do echo "int file_$n(int);"; n=$((n + 1)); done
    echo '#include <stdio.h>'; echo 'int main(void) { int x = 1;'
    n=0
    while [ $n -lt $files ]; do echo "x = file_$n(x);"; n=$((n + 1)); done
    echo 'printf("%d", x); return 0; }'
} >main.c
printf '%s\n' *.c | xargs -P 4 -n 1 cc -O2 -g -c
cc -o program *.o
[ "$(ls ./*.o | wc -l)" = $((files + 1)) ]
echo "done $(./program)"
