# what: PostgreSQL: initdb, pgbench, a parallel query, kill -9 of a backend, dump and restore
# needs: psql:postgresql pgbench:postgresql
# loaded: postgres
# limit_s: 900

bin=$(ls -d /usr/lib/postgresql/*/bin 2> /dev/null | tail -1)
[ -x "$bin/postgres" ] || { echo 'no PostgreSQL server'; exit 77; }
PATH=$bin:$PATH
export PGHOST=$PWD PGDATABASE=postgres PGUSER=postgres
initdb -D data -A trust -U postgres --no-sync > initdb.log
settings="-k $PWD -c listen_addresses= -c parallel_setup_cost=0 -c parallel_tuple_cost=0 -c min_parallel_table_scan_size=0"
pg_ctl -D data -w -l server.log -o "$settings" start > start.log
trap 'pg_ctl -D data -m fast -w stop > stop.log' EXIT
ask() { psql -At -c "$1" "${@:2}"; }

pgbench -i -q -s 2 > pgbench.log 2>&1
pgbench -c 4 -j 2 -t 250 >> pgbench.log 2>&1
ask 'select count(*), sum(abalance) = (select sum(bbalance) from pgbench_branches) from pgbench_accounts'
ask 'explain select count(*) from pgbench_accounts where aid % 3 = 0' | grep -c 'Workers Planned'
ask 'select count(*), sum(aid) from pgbench_accounts where aid % 3 = 0'
ask "select count(*), md5(string_agg(x, ',' order by x)) from (select md5(aid::text) x from pgbench_accounts) s"

psql -At -c 'select pg_sleep(60)' > sleep.log 2>&1 &
victim=
for _ in $(seq 200); do
    victim=$(ask "select pid from pg_stat_activity where query = 'select pg_sleep(60)'")
    [ -z "$victim" ] || break
    sleep 0.05
done
kill -9 "$victim"
wait $! || echo 'the client lost its server'
for _ in $(seq 200); do
    ask 'select 1' > /dev/null 2>&1 && break
    sleep 0.05
done
ask 'select count(*) from pgbench_accounts'

pg_dump postgres > dump.sql
createdb again
psql -q -v ON_ERROR_STOP=1 -d again -f dump.sql > restore.log
ask 'select count(*), sum(aid) from pgbench_accounts' -d again
