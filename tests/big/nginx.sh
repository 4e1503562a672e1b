# what: nginx: compressed pages to 16 clients, with a reload between
# needs: nginx:nginx-light ab:apache2-utils
# loaded: nginx
# limit_s: 600

port=$((20000 + $$ % 10000))
mkdir pages
seq 30000 > pages/numbers.txt
cat > nginx.conf <<END
worker_processes 2;
daemon off;
pid $PWD/pid;
error_log $PWD/error.log;
events { worker_connections 256; }
http {
    access_log $PWD/access.log;
    client_body_temp_path $PWD/body; proxy_temp_path $PWD/proxy; fastcgi_temp_path $PWD/fastcgi; uwsgi_temp_path $PWD/uwsgi;
    scgi_temp_path $PWD/scgi;
    gzip on; gzip_types text/plain; gzip_comp_level 4;
    server { listen 127.0.0.1:$port; root $PWD/pages; types { text/plain txt; } }
}
END
nginx -p "$PWD" -c nginx.conf -e error.log &
pid=$!
trap 'kill $pid 2> /dev/null' EXIT
for _ in $(seq 200); do
    [ ! -s pid ] || break
    sleep 0.05
done
for round in 1 2 3; do
    ab -q -n 700 -c 16 -H 'Accept-Encoding: gzip' "http://127.0.0.1:$port/numbers.txt" > "ab$round.log"
    grep -E '^(Complete|Failed) requests|^HTML transferred' "ab$round.log"
    kill -HUP $pid
    sleep 0.5
done
kill -QUIT $pid
wait $pid
trap - EXIT
grep -c ' 200 ' access.log
