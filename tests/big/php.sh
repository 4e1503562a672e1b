# what: PHP: its server with 4 workers, strings, regular expressions and serialisation
# needs: php:php-cli ab:apache2-utils curl:curl
# loaded: php
# limit_s: 600

port=$((30000 + $$ % 10000))
cat > page.php <<'END'
<?php
$a = [];
for ($i = 0; $i < 5000; $i++) $a["key$i"] = str_repeat(chr(65 + $i % 26), $i % 300);
$copy = unserialize(serialize($a));
$text = implode(",", $copy);
preg_match_all('/([A-M]+),/', $text, $found);
echo strlen($text), " ", count($found[1]), " ", md5(json_encode($copy)), "\n";
END
PHP_CLI_SERVER_WORKERS=4 php -n -S "127.0.0.1:$port" page.php > log 2>&1 &
pid=$!
trap 'kill $pid 2> /dev/null' EXIT
for _ in $(seq 200); do
    curl -s "http://127.0.0.1:$port/" > page && break
    sleep 0.05
done
cat page
ab -q -n 300 -c 8 "http://127.0.0.1:$port/" > ab.log
grep -E '^(Complete|Failed) requests' ab.log
kill $pid
wait $pid || true
trap - EXIT
