# redis-server filled and flushed by 4 client threads; $1 scales.
set -eu
for tool in redis-server redis-benchmark redis-cli; do
    command -v $tool >/dev/null || { echo "$tool is missing (apt-get install redis)" >&2; exit 1; }
done
dir=$(mktemp -d)
server=
trap 'exit 143' HUP INT TERM
trap '[ -z "$server" ] || kill -9 $server 2>/dev/null || :; rm -rf "$dir"' EXIT
redis-server --port 0 --unixsocket "$dir/s" --save '' --appendonly no --dir "$dir" --loglevel warning >/dev/null &
server=$!
client() { env -u LD_PRELOAD "$@"; }
tries=0
until [ "$(client redis-cli -s "$dir/s" ping 2>/dev/null)" = PONG ]; do
    tries=$((tries + 1)); [ $tries -lt 500 ] || { echo 'redis-server does not answer' >&2; exit 1; }
    sleep 0.02
done
for round in 1 2; do
    client redis-benchmark -s "$dir/s" --threads 4 -c 16 -P 16 -n $((100000 * $1)) -r $((100000 * $1)) -d 300 -t set -q >/dev/null
    client redis-benchmark -s "$dir/s" --threads 4 -c 16 -P 16 -n $((50000 * $1)) -r 1000 -d 60 -t lpush,hset,sadd -q >/dev/null
    keys=$(client redis-cli -s "$dir/s" dbsize)
    [ "${keys:-0}" -gt $((50000 * $1)) ] || { echo "only $keys keys" >&2; exit 1; }
    client redis-cli -s "$dir/s" flushall >/dev/null
    [ "$(client redis-cli -s "$dir/s" dbsize)" = 0 ] || { echo 'not flushed' >&2; exit 1; }
done
client redis-cli -s "$dir/s" shutdown nosave >/dev/null 2>&1 || :
wait $server || :
server=
echo "done $1"
