/* Programs that misuse the allocator: misuse CASE. Prints the bad pointer on stdout first; the library
 * must end the program. A double free and an interior pointer may be found only when objects reach
 * their span: hence malloc_trim. Not found: "survived", exit 0. */
#include "check.h"
#include <dlfcn.h>
#include <malloc.h>
#include <sys/mman.h>

static void settle(void)
{
    malloc_trim(0);
    for (int i = 0; i < 4; i++) churn(i, 2000, 200, 11);
    malloc_trim(0);
}

static void twice(size_t n)
{
    void *p = tell(malloc(n)), *other = malloc(n);
    free(p);
    free(p);
    settle();
    free(other);
}

static void later(size_t n)
{
    void *p = tell(malloc(n));
    free(p);
    malloc_trim(0);
    free(p);
    settle();
}

static void inside(size_t n, size_t at)
{
    char *p = malloc(n);
    memset(p, 1, n);
    free(tell(p + at));
    settle();
}

static void sized(size_t n, size_t wrong_n)
{
    void (*free_sized)(void *, size_t) = dlsym(RTLD_DEFAULT, "free_sized");
    CHECK(free_sized);
    free_sized(tell(malloc(n)), wrong_n);
    settle();
}

static int data[100];

int main(int argc, char **argv)
{
    const char *c = argc > 1 ? argv[1] : "";
    char local[64];
    churn(5, 500, 100, 12);
    if (is(c, "twice-small")) twice(48);
    else if (is(c, "twice-medium")) twice(20000);
    else if (is(c, "twice-run")) twice(MIB);
    else if (is(c, "twice-large")) twice(3 * MIB);
    else if (is(c, "later-small")) later(48);
    else if (is(c, "later-large")) later(3 * MIB);
    else if (is(c, "stack")) free(tell(local + 16));
    else if (is(c, "static")) free(tell(data));
    else if (is(c, "code")) free(tell((char *)main + 16));
    else if (is(c, "map")) free(tell(mmap(NULL, 8192, 3, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)));
    else if (is(c, "low")) free(tell((void *)0x1000));
    else if (is(c, "high")) free(tell((void *)(uintptr_t)0xffff800000001000u));
    else if (is(c, "realloc-stack")) { if (realloc(tell(local + 16), 100)) puts("?"); }
    else if (is(c, "usable-stack")) { if (malloc_usable_size(tell(local + 16))) puts("?"); }
    else if (is(c, "inside-1")) inside(200, 1);
    else if (is(c, "inside-8")) inside(200, 8);
    else if (is(c, "inside-16")) inside(200, 16);
    else if (is(c, "inside-large-16")) inside(3 * MIB, 16);
    else if (is(c, "inside-large-page")) inside(3 * MIB, 4096);
    else if (is(c, "inside-large-2m")) inside(5 * MIB, 2 * MIB);
    else if (is(c, "sized-small")) sized(48, 500);
    else if (is(c, "sized-large")) sized(3 * MIB, 100);
    else CHECK(0, "misuse CASE");
    puts("survived");
    return 0;
}
