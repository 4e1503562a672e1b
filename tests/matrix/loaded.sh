# Whether this shell has the library, and which release of the C library it is.
while read -r line; do
    case $line in
        *libebbtide*) found=yes ;;
    esac
done < /proc/$$/maps
[ "$found" = yes ] && echo ok
