# what: mimalloc's stress test and its test of overriding
# source: debian mimalloc
# needs: gcc:gcc g++:g++

# The stress test has a switch for the standard functions. The others get them under mimalloc's names.
mkdir include
cat > include/mimalloc.h <<'END'
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#define mi_version() 0
#define mi_malloc malloc
#define mi_free free
#define mi_strdup strdup
#define mi_stats_print(out) ((void) 0)
#define mi_malloc_aligned(size, alignment) aligned_alloc(alignment, size)
END
tests="$SRC/test"
gcc -O2 -w -Iinclude -DUSE_STD_MALLOC "$tests/test-stress.c" -lpthread -o stress
gcc -O2 -w -Iinclude "$tests/main-override.c" -o override

echo "test test-stress: ./stress 4 20 20"
echo "test test-stress, many threads: ./stress 32 5 10"
echo "test main-override: ./override"
echo "leave test-api (mimalloc's own interface)"
echo "leave test-api-fill (bytes with which mimalloc's debug mode fills memory)"
echo "leave test-wrong (mistakes that mimalloc's debug mode reports)"
echo "leave main-override.cpp (mimalloc's heaps and its allocators for containers)"
