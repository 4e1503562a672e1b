# For any shell: shell.sh CHILDREN. Variables, functions, substitutions, pipes, and so many children by fork or vfork.
set -e
fib() {
    if [ "$1" -lt 2 ]; then echo "$1"; else echo $(($(fib $(($1 - 1))) + $(fib $(($1 - 2))))); fi
}
sum=0
i=0
while [ $i -lt "$1" ]; do
    /box/busybox true
    sum=$((sum + i * i))
    i=$((i + 1))
done
text=$(printf '%s\n' pear apple fig | /box/busybox sort | { read -r first; echo "$first"; })
long=x
while [ ${#long} -lt 65536 ]; do long=$long$long; done
answer="$sum $(fib 5) $text ${#long} $(printf %s "$long" | /box/busybox wc -c | /box/busybox tr -d ' ')"
expected="$(($1 * ($1 - 1) * (2 * $1 - 1) / 6)) 5 apple 65536 65536"
if [ "$answer" = "$expected" ]; then echo ok; else echo "FAIL: $answer"; exit 1; fi
