/* Makes one mistake with an allocation of a size: misuse_kinds fresh|used KIND SIZE [DISTANCE]. It prints "returned" unless the
 * library stops it before, or has taken the effect away. "used": the heap has been used before, and has neighbours. */
#include "check.h"
#include <alloca.h>
#include <dlfcn.h>
#include <malloc.h>

enum { NEIGHBOURS = 64 };

static void returned(void) { puts("returned"); fflush(stdout); exit(0); }

/* The compiler must not know what an access does. */
static volatile char sink;
static void read_at(const char *p) { sink = *(const volatile char *)p; }
static void write_at(char *p) { *(volatile char *)p ^= 'A'; }

static void again(size_t n, int count)
{
    for (int i = 0; i < count; i++) free(malloc(n));
}

/* Objects of the same size around the next ones, and freed ones between them. */
static void use(size_t n)
{
    char *p[NEIGHBOURS];
    churn(5, 3000, 300, 13);
    for (int i = 0; i < NEIGHBOURS; i++) CHECK((p[i] = malloc(n)));
    for (int i = 0; i < NEIGHBOURS; i++) memset(p[i], 'x', n);
    for (int i = 0; i < NEIGHBOURS; i += 3) free(p[i]);
    again(n, 3000);
}

static void *function(const char *name)
{
    void *found = dlsym(RTLD_DEFAULT, name);
    CHECK(found, "%s", name);
    return found;
}

/* Out of bounds by `by` bytes on one side. */
static void beside(const char *c, size_t n, size_t by)
{
    char *p = malloc(n), *behind = p + n - 1 + by, *before = p - by;
    CHECK(p);
    if (is(c, "write-behind")) { write_at(behind); free(p); }
    else if (is(c, "write-before")) { write_at(before); free(p); }
    else if (is(c, "read-behind")) { read_at(behind); free(p); }
    else if (is(c, "read-before")) { read_at(before); free(p); }
    else if (is(c, "copy-behind")) memset(p, 0, n + by);
    else if (is(c, "copy-before")) memset(before, 0, n);
    else CHECK(0, "%s", c);
    returned();
}

/* C++'s operators: the C++ library's, or those that stand before it. */
extern void *new_one(size_t) __asm__("_Znwm");
extern void *new_many(size_t) __asm__("_Znam");
extern void delete_one(void *) __asm__("_ZdlPv");
extern void delete_many(void *) __asm__("_ZdaPv");
extern void delete_sized(void *, size_t) __asm__("_ZdlPvm");

static void forms(const char *c, size_t n)
{
    if (is(c, "form-one-many")) delete_many(new_one(n));
    else if (is(c, "form-many-one")) delete_one(new_many(n));
    else if (is(c, "form-one-free")) free(new_one(n));
    else if (is(c, "form-wrong-size")) delete_sized(new_one(n), n + 71);
    else if (is(c, "form-many-sized")) delete_sized(new_many(n), 1);
    else if (is(c, "form-right")) {
        delete_sized(new_one(n), n);
        delete_sized(new_one(0), 0);
        delete_one(new_one(n));
        delete_many(new_many(n));
        delete_sized(NULL, n);
        exit(0);
    } else CHECK(0, "%s", c);
    returned();
}

int main(int argc, char **argv)
{
    CHECK(argc >= 4, "fresh|used KIND SIZE [DISTANCE]");
    const char *c = argv[2];
    size_t n = number(argv[3]);
    if (is(argv[1], "used")) use(n);
    if (argc > 4) beside(c, n, number(argv[4]));
    if (!strncmp(c, "form-", 5)) forms(c, n);
    char *p = malloc(strncmp(c, "zero-", 5) ? n : 0), *q = p;
    CHECK(p);
    if (is(c, "twice")) { free(p); free(p); }
    else if (is(c, "twice-later")) { free(p); again(n, 1024); free(p); }
    else if (is(c, "twice-around")) { q = malloc(n); free(p); free(q); free(p); }
    else if (is(c, "twice-reused")) { free(p); free(p); again(n, 262144); }
    else if (is(c, "twice-taken")) { free(p); q = malloc(n); free(p); free(q); }
    else if (is(c, "freed-write")) { free(p); memset(p, 'A', n); }
    else if (is(c, "freed-write-reused")) { free(p); memset(p, 'A', n); again(n, 262144); }
    else if (is(c, "freed-read")) { /* whether a freed object still shows its content */
        memset(p, 'A', n);
        free(p);
        for (size_t i = 0; i < n; i++)
            if (((volatile char *)p)[i] == 'A') returned();
        return 0;
    } else if (is(c, "freed-read-zero")) { /* the same, if only zero counts as no content */
        memset(p, 'A', n);
        free(p);
        for (size_t i = 0; i < n; i++)
            if (((volatile char *)p)[i]) returned();
        return 0;
    } else if (is(c, "moved-write")) { q = realloc(p, 4 * n + 5000); CHECK(q != p); memset(p, 'A', n); }
    else if (is(c, "moved-write-reused")) { q = realloc(p, 4 * n + 5000); memset(p, 'A', n); again(n, 262144); }
    else if (is(c, "moved-twice")) { q = realloc(p, 4 * n + 5000); free(p); }
    else if (is(c, "new-content")) {
        for (size_t i = 0; i < n; i++)
            if (((volatile char *)p)[i]) returned();
        return 0;
    } else if (is(c, "reuse")) { free(p); if (malloc(n) != p) return 0; }
    else if (is(c, "reuse-half")) { free(p); if (malloc(n / 2) != p) return 0; }
    else if (is(c, "reuse-moved")) { q = realloc(p, 4 * n + 5000); if (malloc(n) != p) return 0; }
    else if (is(c, "zero-read") || is(c, "zero-read-free")) { read_at(p); if (is(c, "zero-read-free")) free(p); }
    else if (is(c, "zero-write") || is(c, "zero-write-free")) { write_at(p); if (is(c, "zero-write-free")) free(p); }
    else if (is(c, "zero-twice")) { free(p); free(p); }
    else if (is(c, "wrong-one")) free((void *)1);
    else if (is(c, "wrong-alloca")) free(alloca(n));
    else if (is(c, "wrong-stack")) { char local[64]; free(local + 16); }
    else if (is(c, "wrong-close")) free(p + 4096);
    else if (is(c, "wrong-far")) free(p + GIB);
    else if (is(c, "wrong-by-1")) free(p + 1);
    else if (is(c, "wrong-by-8")) free(p + 8);
    else if (is(c, "wrong-by-16")) free(p + 16);
    else if (is(c, "wrong-size")) { void (*sized)(void *, size_t) = function("free_sized"); sized(p, n + 1); }
    else if (is(c, "huge")) { if (!malloc((size_t)-2)) return 0; }
    else if (is(c, "execute")) { /* an instruction that returns: the heap is not executable */
        memcpy(p, "\x90\xc3", 2);
        ((void (*)(void))(uintptr_t)p)();
    } else CHECK(0, "%s", c);
    returned();
}
