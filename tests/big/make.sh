# what: make -j4 over 500 files with gcc
# needs: make:make gcc:gcc
# loaded: make cc1
# limit_s: 900

for i in $(seq 500); do
    {
        echo '#include <stdio.h>'
        echo '#include <stdlib.h>'
        echo '#include <string.h>'
        for f in $(seq 12); do
            echo "static long f$f(long x) { char b[64]; snprintf(b, sizeof b, \"%ld\", x * $f); return strtol(b, 0, 10) % $((i * f + 7)); }"
        done
        echo "long g$i(long x) { return f1(x) + f2(x) + f3(x) + f4(x) + f5(x) + f6(x) + f7(x) + f8(x) + f9(x) + f10(x) + f11(x) + f12(x); }"
    } > "g$i.c"
done
{
    echo '#include <stdio.h>'
    for i in $(seq 500); do echo "long g$i(long);"; done
    echo 'int main(void) { long s = 0;'
    for i in $(seq 500); do echo "s += g$i(s + $i);"; done
    echo 'printf("%ld\n", s); return 0; }'
} > main.c
printf 'it: $(patsubst %%.c,%%.o,$(wildcard *.c))\n\t$(CC) $^ -o $@\n%%.o: %%.c\n\t$(CC) -O1 -c $< -o $@\n' > Makefile
make -s -j4
./it
