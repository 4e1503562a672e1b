# what: jemalloc's integration tests of the standard functions and of C++'s operators
# source: debian jemalloc
# needs: gcc:gcc g++:g++ make:make
#
# Of jemalloc itself only what its tests share is compiled. Its control interface does nothing here.

cp -r "$SRC" tree
cd tree
./configure > configure.log
: > include/jemalloc/internal/private_namespace.h
cat > control.c <<'END'
#include <stdlib.h>
int mallctl(const char *name, void *old, size_t *old_len, void *new, size_t new_len) { return 0; }
int mallctlnametomib(const char *name, size_t *mib, size_t *len) { return 0; }
/* The tests ask for the size of jemalloc's largest class, which is too large to be allocated. */
int mallctlbymib(const size_t *mib, size_t len, void *old, size_t *old_len, void *new, size_t new_len) {
    *(size_t *) old = 7ull << 60;
    return 0;
}
void *mallocx(size_t size, int flags) { return malloc(size); }
size_t nallocx(size_t size, int flags) { return size; }
END
flags="-O1 -w -D_GNU_SOURCE -D_REENTRANT -Iinclude -Itest/include -DJEMALLOC_INTEGRATION_TEST -DJEMALLOC_NO_PRIVATE_NAMESPACE -fno-builtin"
for file in test/src/{btalloc,btalloc_0,btalloc_1,math,mtx,sleep,SFMT,test,thd,timer}.c src/{nstime,malloc_io,ticker,test_hooks}.c control.c; do
    gcc $flags -std=gnu11 -c "$file" -o "shared_$(basename "$file" .c).o"
done
for path in test/integration/*.c test/integration/cpp/*.cpp; do
    name=${path#test/integration/}
    name=${name%.c*}
    own=
    why=
    case $name in
        aligned_alloc | malloc | overflow | posix_memalign) gcc $flags -std=gnu11 "$path" shared_*.o -lpthread -lm -o "../$name" ;;
        cpp/basic | cpp/infallible_new_false)
            g++ $flags -std=c++17 -fpermissive -fno-allocation-dce "$path" shared_*.o -lpthread -lm -o "../${name#cpp/}" ;;
        cpp/infallible_new_true) own="an option of jemalloc: operator new that ends the program instead of throwing" ;;
        MALLOCX_ARENA | thread_arena) own="jemalloc's arenas, chosen by its functions" ;;
        allocated) own="jemalloc's counters of a thread" ;;
        extent) own="functions of a program that give jemalloc memory" ;;
        mallocx | rallocx | sdallocx | smallocx | xallocx) own="jemalloc's function $name" ;;
        slab_sizes) own="jemalloc's sizes of slabs" ;;
        thread_tcache_enabled) own="a switch of jemalloc's cache of a thread" ;;
        *) echo "unknown test $name" >&2; exit 1 ;;
    esac
    [ "$name" != aligned_alloc ] || why="expects EINVAL for an alignment that is no power of two, as glibc from 2.38 on"
    if [ -n "$own" ]; then
        echo "leave $name ($own)"
    elif [ -n "$why" ]; then
        echo "differs $name ($why): ./$name"
    else
        echo "test $name: ./${name#cpp/}"
    fi
done
echo "leave unit (jemalloc's parts)"
echo "leave stress (measurements, of jemalloc's parts)"
