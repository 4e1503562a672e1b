# what: mimalloc's stress test, its test of overriding, and those of its interface that are about standard functions
# source: debian mimalloc
# needs: gcc:gcc g++:g++

# The stress test has a switch for the standard functions. The others get them under mimalloc's names.
mkdir include
cp "$SRC/include/mimalloc-override.h" include
cat > include/mimalloc.h <<'END'
#pragma once
#include <malloc.h>
#include <stdlib.h>
#include <string.h>
#define mi_version() 0
#define mi_option_disable(option) 0
#define mi_stats_print(out) ((void) 0)
#define mi_malloc malloc
#define mi_calloc calloc
#define mi_realloc realloc
#define mi_reallocarray reallocarray
#define mi_free free
#define mi_strdup strdup
#define mi_realpath realpath
#define mi_usable_size malloc_usable_size
#define mi_posix_memalign posix_memalign
#define mi_memalign memalign
static inline int mi_reallocarr(void *at, size_t count, size_t size) {
    void *p = reallocarray(*(void **) at, count, size);
    if (p) *(void **) at = p;
    return p ? 0 : 12;
}
static inline void *mi_malloc_aligned(size_t size, size_t alignment) { return memalign(alignment, size); }
static inline void *mi_zalloc_aligned(size_t size, size_t alignment) {
    void *p = memalign(alignment, size);
    return p ? memset(p, 0, size) : p;
}
#ifdef __cplusplus
#include <memory>
#define mi_stats_reset() ((void) 0)
template <class T> using mi_stl_allocator = std::allocator<T>;
template <class T> using mi_heap_stl_allocator = std::allocator<T>;
template <class T> using mi_heap_destroy_stl_allocator = std::allocator<T>;
#endif
END
echo '#define MI_ALIGNMENT_MAX (1 << 20)' > include/mimalloc-types.h
# Runs the check that the command line names.
cat > testhelper.h <<'END'
#include <stdio.h>
static const char *only;
static int ran, failed;
__attribute__((constructor)) static void choose(int count, char **arguments) { only = count > 1 ? arguments[1] : ""; }
#define CHECK_BODY(name) \
    if (strcmp(only, name) == 0) \
        for (bool done = (errno = 0, ran++), result = true; !done; failed += !result, done = true)
#define CHECK(name, expr) CHECK_BODY(name) { result = (expr); }
static int print_test_summary(void) { return failed || ran != 1; }
END
tests=$SRC/test
sed '/CHECK_BODY("malloc_aligned11")/,/^  }/d; /CHECK_BODY("malloc-aligned-at/,/^  };/d; /CHECK("\(heap\|stl\)_/d; /^bool test_heap[12]() {/,/^}/d' \
    "$tests/test-api.c" > test-api.c
gcc -O2 -w -Iinclude -DUSE_STD_MALLOC "$tests/test-stress.c" -lpthread -o stress
gcc -O2 -w -Iinclude "$tests/main-override.c" -o override
# Its main leaves most parts out. All but those of heaps and its measurement run here.
sed '/^  \/\*$/d; /^  \*\/$/d; /^static void heap_no_delete_worker() {/,/^}/d; /^static void heap_no_delete() {/,/^}/d; /heap_no_delete();/d
    /^static void t1main() {/,/^}/d; /^static void heap_late_free() {/,/^}/d; /heap_late_free();/d; /^  bench_alloc_large();/d' "$tests/main-override.cpp" > override.cpp
g++ -std=c++17 -O2 -w -fno-builtin -fno-allocation-dce -Iinclude override.cpp -lpthread -o override-cpp
gcc -O1 -w -fno-builtin -Iinclude -I. test-api.c -o api

echo "test test-stress: ./stress 4 20 20"
echo "test test-stress, many threads: ./stress 32 5 10"
echo "test main-override: ./override"
echo "test main-override, C++: ./override-cpp"
grep -oP 'CHECK_BODY\("\K[^"]+' test-api.c | while read -r name; do
    case $name in
        realloc-sizezero) echo "differs test-api $name (expects that realloc to 0 bytes returns memory): ./api $name" ;;
        *) echo "test test-api $name: ./api $name" ;;
    esac
done
echo "leave test-api, heaps and aligned offsets (mimalloc's own interface)"
echo "leave test-api-fill (bytes with which mimalloc's debug mode fills memory)"
echo "leave test-wrong (mistakes that mimalloc's debug mode reports)"
echo "leave main (mimalloc's own interface)"
echo "leave main-override-static (mimalloc's own interface, and mistakes that its debug mode reports)"
