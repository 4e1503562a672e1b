# sort sorts lines of text with two threads; $1 scales.
set -eu
dir=$(mktemp -d)
trap 'exit 143' HUP INT TERM
trap 'rm -rf "$dir"' EXIT
lines=$((500000 * $1))
env -u LD_PRELOAD awk -v lines=$lines 'BEGIN { for (n = 0; n < lines; n++) printf "%d a line of text %d\n", n * 7919 % 1000003, n % 97 }' >"$dir/in"
LC_ALL=C sort --parallel=2 -S 1G -n "$dir/in" -o "$dir/out" &
echo "@watch $!"
wait $!
echo "done $(env -u LD_PRELOAD wc -c <"$dir/out")"
