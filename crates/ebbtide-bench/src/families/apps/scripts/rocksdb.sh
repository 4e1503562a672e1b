# db_bench of rocksdb fills, overwrites and reads; $1 scales.
set -eu
dir=$(mktemp -d)
trap 'exit 143' HUP INT TERM
trap 'rm -rf "$dir"' EXIT
db_bench --db="$dir/db" --num=$((40000 * $1)) --value_size=200 --threads=1 --seed=1 --write_buffer_size=8388608 \
    --cache_size=16777216 --compression_type=none --benchmarks=fillrandom,overwrite,readrandom >"$dir/said" 2>&1 &
echo "@watch $!"
wait $! || { tail -n 1 "$dir/said" >&2; exit 1; }
[ "$(grep -c '^fillrandom \|^overwrite \|^readrandom ' "$dir/said")" = 3 ] || { echo 'not all was done' >&2; exit 1; }
echo "done $1"
