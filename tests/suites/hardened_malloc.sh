# what: hardened_malloc's tests of what a hardened allocator stops, with `harden=on`
# source: crate hardened-malloc-sys 16.0.2026050400
# needs: gcc:gcc g++:g++
# conf: harden=on
#
# Its own test program says how each program must end: -6 and -11 are the signals of a mistake that was stopped.

tests=$SRC/vendor/hardened-malloc/test
# A function of C23 that not every C library has.
echo '#pragma weak free_aligned_sized' > weak.h
flags="-O3 -w -include weak.h -D_GNU_SOURCE -DSLAB_CANARY=true -DCONFIG_EXTENDED_SIZE_CLASSES=true"
tr -s '\n ' ' ' < "$tests/test_smc.py" | grep -oP 'run_test\( ?"\K[a-z0-9_]+".*?returncode, -?[0-9]+' |
    sed -E 's/".* /: /' | sort > expected
[ "$(wc -l < expected)" -gt 40 ]
while IFS=: read -r name status; do
    case $name in
        *malloc_object_size*) echo "leave $name (a function of hardened_malloc's own)"; continue ;;
        string_overflow) echo "leave $name (it ends well in any case, and is judged by what it prints)"; continue ;;
    esac
    if [ -f "$tests/$name.cc" ]; then
        g++ -std=c++17 -fsized-deallocation $flags "$tests/$name.cc" -o "$name"
    else
        gcc -std=c17 $flags "$tests/$name.c" -lpthread -o "$name"
    fi
    case $name in
        invalid_aligned_sized_delete_* | delete_type_size_mismatch)
            echo "misses $name (the size in operator delete is not compared; docs/limits.md): ./$name" ;;
        read_after_free_small) echo "differs $name (expects that freed memory reads as zero; Ebbtide fills it with 0xdb): ./$name" ;;
        *) if [ "$status" = ' 0' ]; then echo "test $name: ./$name"; else echo "stops $name: ./$name"; fi ;;
    esac
done < expected
for name in mallinfo mallinfo2 malloc_info; do
    gcc -std=c17 $flags "$tests/$name.c" -lpthread -o "$name"
    echo "test $name: ./$name"
done
echo "leave offset (prints where objects lie, and judges nothing)"
