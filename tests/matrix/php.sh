# PHP with all extensions that come with it in shared libraries, which it opens with RTLD_DEEPBIND.
php=$(ls /usr/bin/php[0-9]* | /box/busybox head -n 1)
arguments=
for path in /usr/lib/php/20*/*.so; do
    case $path in
        */opcache.so | */pdo_*) ;;
        *) arguments="$arguments -d extension=$path" ;;
    esac
done
exec "$php" -n $arguments /matrix/program.php
