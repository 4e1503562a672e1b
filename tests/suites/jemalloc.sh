# what: jemalloc's integration tests of the standard functions
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
flags="-O1 -w -std=gnu11 -D_GNU_SOURCE -D_REENTRANT -Iinclude -Itest/include -DJEMALLOC_INTEGRATION_TEST -DJEMALLOC_NO_PRIVATE_NAMESPACE -fno-builtin"
for file in test/src/{btalloc,btalloc_0,btalloc_1,math,mtx,sleep,SFMT,test,thd,timer}.c src/{nstime,malloc_io,ticker,test_hooks}.c control.c; do
    gcc $flags -c "$file" -o "shared_$(basename "$file" .c).o"
done
for path in test/integration/*.c test/integration/cpp/*.cpp; do
    name=${path#test/integration/}
    name=${name%.c*}
    case $name in
        aligned_alloc | malloc | overflow | posix_memalign)
            gcc $flags "$path" shared_*.o -lpthread -lm -o "../$name"
            echo "test $name: ./$name"
            ;;
        *) echo "leave $name (jemalloc's own interface, options or figures)" ;;
    esac
done
