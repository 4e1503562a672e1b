# sqlite3 fills, updates and empties a database in memory; $1 scales.
set -eu
dir=$(mktemp -d)
trap 'exit 143' HUP INT TERM
trap 'rm -rf "$dir"' EXIT
rows=$((50000 * $1))
cat >"$dir/work.sql" <<END
create table one(id integer primary key, name text, value integer, body blob);
with recursive n(i) as (select 1 union all select i + 1 from n where i < $rows)
  insert into one select i, 'name ' || (i * 7919 % $rows), i % 1000, zeroblob(i % 400) from n;
create index by_name on one(name);
create index by_value on one(value);
update one set body = zeroblob(length(body) * 3 / 2) where value < 500;
create table two as select value, count(*) as many, sum(length(body)) as bytes, group_concat(name) as names from one group by value;
delete from one where id % 10 <> 0;
.shell echo @rest; head -n 1 <&3 >/dev/null
select 'done ' || ((select sum(bytes) from two) + (select sum(length(name)) from one));
END
exec 3<&0
sqlite3 :memory: <"$dir/work.sql" &
echo "@watch $!"
wait $!
