# what: MariaDB: a server, 4 clients, joins, an index, dump and restore
# needs: mariadbd:mariadb-server-core mariadb-install-db:mariadb-server-core mariadb:mariadb-client-core mariadb-dump:mariadb-client
# loaded: mariadbd
# limit_s: 900

mariadb-install-db --no-defaults --datadir="$PWD/data" --auth-root-authentication-method=normal --skip-test-db > install.log 2>&1
mariadbd --no-defaults --datadir="$PWD/data" --socket="$PWD/s" --pid-file="$PWD/pid" --skip-networking --innodb-buffer-pool-size=64M > log 2>&1 &
pid=$!
trap 'kill $pid 2> /dev/null' EXIT
ask() { mariadb --no-defaults -S "$PWD/s" -u root -N "$@"; }
for _ in $(seq 600); do
    ask -e 'select 1' > /dev/null 2>&1 && break
    sleep 0.1
done
ask -e 'create database d'
ask d -e 'create table t (id int primary key auto_increment, client int, word varchar(300), n int)'
clients=()
for client in 1 2 3 4; do
    ask d -e "insert into t (client, word, n) select $client, repeat(md5(seq), 1 + seq % 9), seq from seq_1_to_20000" &
    clients+=($!)
done
wait "${clients[@]}"
ask d -e 'create index i on t (word(40)); select count(*), sum(n), count(distinct word) from t'
ask d -e 'select count(*), sum(a.n) from t a join t b on a.word = b.word and a.client = 1 and b.client = 2'
ask d -e 'delete from t where n % 3 = 0; optimize table t' > optimize.log
mariadb-dump --no-defaults -S "$PWD/s" -u root --skip-dump-date d > dump.sql
ask -e 'create database e'
ask e < dump.sql
ask e -e 'select count(*), sum(n), min(length(word)), max(length(word)) from t'
kill $pid
wait $pid
trap - EXIT
