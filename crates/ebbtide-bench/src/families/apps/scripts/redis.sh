# redis-server loads, replaces, expires and flushes keys; $1 scales.
set -eu
dir=$(mktemp -d)
server=
trap 'exit 143' HUP INT TERM
trap '[ -z "$server" ] || kill -9 $server 2>/dev/null || :; rm -rf "$dir"' EXIT
client() { env -u LD_PRELOAD "$@"; }
redis-server --port 0 --unixsocket "$dir/s" --save '' --appendonly no --dir "$dir" --loglevel warning >/dev/null &
server=$!
echo "@watch $server"
tries=0
until [ "$(client redis-cli -s "$dir/s" ping 2>/dev/null)" = PONG ]; do
    tries=$((tries + 1)); [ $tries -lt 500 ] || { echo 'redis-server does not answer' >&2; exit 1; }
    sleep 0.02
done
keys=$((50000 * $1))
fill() { client redis-benchmark -s "$dir/s" -c 16 -P 16 -n "$keys" -r "$keys" -q "$@" >/dev/null; }
fill -d 300 -t set
fill -d 60 -t set,lpush,hset,sadd
fill -d 900 -t set
fill SETEX temporary:__rand_int__ 1 "$(printf '%0500d' 0)"
found=$(client redis-cli -s "$dir/s" dbsize)
[ "${found:-0}" -gt $((keys / 2)) ] || { echo "only $found keys" >&2; exit 1; }
sleep 1.5
fill -d 100 -t get
client redis-cli -s "$dir/s" flushall >/dev/null
fill -d 300 -t set
client redis-cli -s "$dir/s" flushall >/dev/null
[ "$(client redis-cli -s "$dir/s" dbsize)" = 0 ] || { echo 'not flushed' >&2; exit 1; }
echo @rest
read -r _
client redis-cli -s "$dir/s" shutdown nosave >/dev/null 2>&1 || :
wait $server || :
server=
echo "done $1"
