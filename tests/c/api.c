/* The C interface, one topic a run: api TOPIC. What glibc promises is the yardstick. */
#include "check.h"
#include "../../include/ebbtide.h"
#include <dlfcn.h>
#include <malloc.h>
#include <stdint.h>
#include <sys/sysinfo.h>

static volatile size_t opaque;
static size_t hide(size_t n) { opaque = n; return opaque; }

static void basic(void)
{
    void *a = malloc(hide(0)), *b = malloc(hide(0));
    CHECK(a && b && a != b, "malloc(0) must be unique");
    free(a); free(b); free(NULL);
    void *p = malloc(100);
    CHECK(p);
    CHECK(realloc(p, hide(0)) == NULL, "realloc(p, 0) frees");
    p = realloc(NULL, 50);
    CHECK(p); memset(p, 1, 50); free(p);
    p = calloc(hide(0), 8); CHECK(p); free(p);
    p = calloc(8, hide(0)); CHECK(p); free(p);
    p = reallocarray(NULL, 10, 10);
    CHECK(p); memset(p, 2, 100);
    p = reallocarray(p, 1000, 10);
    CHECK(p && ((char *)p)[99] == 2); free(p);
    for (size_t n = 1; n < 100000; n += n / 7 + 1) {
        char *q = malloc(n);
        CHECK(q && (uintptr_t)q % (n < 16 ? 8 : 16) == 0, "%p for %zu", (void *)q, n);
        fill(q, n, n); VERIFY(q, n, n); free(q);
    }
}

static void too_big(void)
{
    char *keep = malloc(64);
    fill(keep, 64, 7);
    size_t sizes[] = { (size_t)PTRDIFF_MAX + 1, SIZE_MAX, SIZE_MAX - 15, SIZE_MAX - 4096,
                       SIZE_MAX - 2 * MIB, PTRDIFF_MAX };
    for (unsigned i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = hide(sizes[i]);
        errno = 0; CHECK(!malloc(n) && errno == ENOMEM, "malloc %zx", n);
        errno = 0; CHECK(!calloc(1, n) && errno == ENOMEM, "calloc %zx", n);
        errno = 0; CHECK(!realloc(keep, n) && errno == ENOMEM, "realloc %zx", n);
        errno = 0; CHECK(!realloc(NULL, n) && errno == ENOMEM, "realloc NULL %zx", n);
        errno = 0; CHECK(!memalign(64, n) && errno == ENOMEM, "memalign %zx", n);
        errno = 0; CHECK(!valloc(n) && errno == ENOMEM, "valloc %zx", n);
        errno = 0; CHECK(!pvalloc(n) && errno == ENOMEM, "pvalloc %zx", n);
        void *p = &p;
        CHECK(posix_memalign(&p, 4096, n) == ENOMEM, "posix_memalign %zx", n);
        CHECK(posix_memalign(&p, GIB, n) == ENOMEM, "posix_memalign %zx", n);
    }
    size_t half = hide((size_t)1 << 32);
    errno = 0; CHECK(!calloc(half, half) && errno == ENOMEM);
    errno = 0; CHECK(!calloc(half + 1, half) && errno == ENOMEM);
    errno = 0; CHECK(!calloc(SIZE_MAX / 2, 3) && errno == ENOMEM);
    errno = 0; CHECK(!reallocarray(keep, half, half) && errno == ENOMEM);
    errno = 0; CHECK(!reallocarray(NULL, SIZE_MAX / 4, 5) && errno == ENOMEM);
    VERIFY(keep, 64, 7);
    free(keep);
}

static void ram(void)
{
    FILE *f = fopen("/proc/sys/vm/overcommit_memory", "r");
    int mode = -1;
    CHECK(f && fscanf(f, "%d", &mode) == 1); fclose(f);
    if (mode != 0) { skipped("overcommit_memory is not 0"); return; }
    struct sysinfo si;
    CHECK(sysinfo(&si) == 0);
    size_t all = ((size_t)si.totalram + si.totalswap) * si.mem_unit;
    errno = 0;
    CHECK(!malloc(hide(all + GIB)) && errno == ENOMEM, "more than RAM and swap");
    errno = 0;
    CHECK(!calloc(1, hide(all * 2)) && errno == ENOMEM);
    void *p = malloc(hide(all / 4));
    CHECK(p, "a quarter of RAM, untouched"); free(p);
}

static void align(void)
{
    static void *held[64];
    size_t sizes[] = { 1, 24, 100, 4096, 5000, 70000, 3 * MIB };
    for (size_t a = 16; a <= GIB; a *= 2)
        for (int s = 0; s < 7; s++) {
            int n = a <= MIB ? 8 : 1;
            for (int i = 0; i < n; i++) {
                void *p = NULL;
                switch (i % 3) {
                case 0: CHECK(posix_memalign(&p, a, sizes[s]) == 0, "align %zu size %zu", a, sizes[s]); break;
                case 1: p = memalign(a, sizes[s]); break;
                case 2: p = aligned_alloc(a, sizes[s]); break;
                }
                CHECK(p && (uintptr_t)p % a == 0, "%p align %zu size %zu", p, a, sizes[s]);
                CHECK(malloc_usable_size(p) >= sizes[s]);
                fill(held[i] = p, sizes[s], a + i);
            }
            for (int i = 0; i < n; i++) { VERIFY(held[i], sizes[s], a + i); free(held[i]); }
        }
    void *p = valloc(100); CHECK(p && (uintptr_t)p % PAGE == 0); free(p);
    p = pvalloc(100); CHECK(p && (uintptr_t)p % PAGE == 0 && malloc_usable_size(p) >= PAGE);
    memset(p, 1, PAGE); free(p);
    p = pvalloc(hide(0)); free(p);
    p = memalign(64, hide(0)); CHECK(p); free(p);
    size_t bad[] = { 0, 3, 4, 24, 7, 4097 };
    for (int i = 0; i < 6; i++) {
        void *mark = &mark, *q = mark;
        errno = 4242;
        CHECK(posix_memalign(&q, hide(bad[i]), 10) == EINVAL, "alignment %zu", bad[i]);
        CHECK(errno == 4242 && q == mark, "errno and *memptr stay as they were");
    }
    /* Not a power of two: EINVAL (C23), or rounded up (glibc 2.36). Nothing else. */
    errno = 0;
    p = aligned_alloc(hide(48), 100);
    CHECK(p ? (uintptr_t)p % 64 == 0 : errno == EINVAL);
    free(p);
    /* An aligned object lives through realloc (its alignment need not). */
    p = memalign(4096, 1000); fill(p, 1000, 3);
    p = realloc(p, 100000); CHECK(p && wrong(p, 1000, 1000, 3) < 0); free(p);
}

static void zero(void)
{
    for (int round = 0; round < 2; round++)
        for (size_t n = 1; n <= 64 * MIB; n += n < 4096 ? n / 5 + 1 : n / 2) {
            void *p[16];
            int k = n <= 64 * KIB ? 16 : n <= 4 * MIB ? 3 : 1;
            for (int i = 0; i < k; i++) { CHECK((p[i] = malloc(n))); memset(p[i], 0xa5, n); }
            for (int i = 0; i < k; i++) free(p[i]);
            if (round) malloc_trim(0);
            for (int i = 0; i < k; i++) {
                size_t part = n % 4 == 0 ? 4 : 1;
                CHECK((p[i] = calloc(n / part, part)));
                ptrdiff_t at = not_zero(p[i], n);
                CHECK(at < 0, "calloc of %zu: byte %td is dirty", n, at);
                memset(p[i], 0x5a, n);
            }
            for (int i = 0; i < k; i++) free(p[i]);
        }
}

/* Large objects of ever different sizes: what lies behind one is the middle of another later. */
static void neighbours(void)
{
    for (int mode = 0; mode < 4; mode++) {
        uint64_t s = mode;
        char *p[8] = {0};
        for (int k = 0; k < 600; k++) {
            int i = rnd(&s) % 8;
            size_t n = 100000 + rnd(&s) % (rnd(&s) % 2 ? 20 * MIB : 3 * MIB);
            if (p[i] && (mode & 1) && rnd(&s) % 2) CHECK((p[i] = realloc(p[i], n)));
            else if (p[i]) { free(p[i]); p[i] = NULL; continue; }
            else if ((mode & 2) && rnd(&s) % 4 == 0) CHECK((p[i] = memalign(16 << rnd(&s) % 18, n)));
            else if (rnd(&s) % 2) CHECK((p[i] = malloc(n)));
            else {
                CHECK((p[i] = calloc(1, n)));
                ptrdiff_t at = not_zero(p[i], n);
                CHECK(at < 0, "step %d.%d: calloc of %zu at %p: byte %td is dirty", mode, k, n, (void *)p[i], at);
            }
            fill(p[i], n, k);
        }
        for (int i = 0; i < 8; i++) free(p[i]);
    }
}

static void resize(void)
{
    char *p = NULL;
    size_t old = 0;
    for (size_t n = 1; n <= 256 * MIB; n += n / 2 + 1) {
        p = realloc(p, n);
        CHECK(p, "to %zu", n);
        if (old) { ptrdiff_t at = wrong(p, old, old, 5); CHECK(at < 0, "%zu -> %zu lost byte %td", old, n, at); }
        fill(p, n, 5);
        old = n;
    }
    while (old > 1) {
        size_t n = old - old / 3 - 1;
        if (!n) n = 1;
        p = realloc(p, n);
        CHECK(p, "down to %zu", n);
        ptrdiff_t at = wrong(p, old, n, 5);
        CHECK(at < 0, "%zu -> %zu lost byte %td", old, n, at);
        fill(p, n, 5);
        old = n;
    }
    free(p);
    /* Whole content at every step of a fine ladder, with neighbours in the way. */
    uint64_t s = 1;
    for (int i = 0; i < 3000; i++) {
        size_t from = log_size(&s, 13), to = log_size(&s, 13);
        char *a = malloc(from), *wall = malloc(from);
        CHECK(a && wall);
        for (size_t k = 0; k < from; k++) a[k] = pattern(i, k);
        memset(wall, 0xee, from);
        CHECK((a = realloc(a, to)));
        for (size_t k = 0; k < from && k < to; k++)
            CHECK((unsigned char)a[k] == pattern(i, k), "%zu -> %zu at %zu", from, to, k);
        memset(a, 0x77, to);
        for (size_t k = 0; k < from; k++) CHECK((unsigned char)wall[k] == 0xee);
        free(a); free(wall);
    }
}

static void usable(void)
{
    CHECK(malloc_usable_size(NULL) == 0);
    static char *p[3000];
    static size_t n[3000];
    int k = 0;
    for (size_t size = 0; k < 3000 && size < 4 * MIB; size += size < 2000 ? 1 : size / 40) {
        CHECK((p[k] = malloc(size)));
        n[k] = malloc_usable_size(p[k]);
        CHECK(n[k] >= size, "%zu of %zu", n[k], size);
        CHECK(n[k] <= size + 64 + size / 2 || n[k] <= 2 * MIB, "%zu of %zu is much", n[k], size);
        memset(p[k], k & 255, n[k]);
        k++;
    }
    for (int i = 0; i < k; i++)
        for (size_t at = 0; at < n[i]; at += n[i] > 64 * KIB ? 997 : 1)
            CHECK((unsigned char)p[i][at] == (i & 255), "object %d, byte %zu of %zu", i, at, n[i]);
    for (int i = 0; i < k; i++) free(p[i]);
}

static void errnos(void)
{
    size_t sizes[] = { 1, 100, 5000, 100000, 2 * MIB, 300 * MIB };
    for (int round = 0; round < 3; round++)
        for (int i = 0; i < 6; i++) {
            void *p = malloc(sizes[i]);
            CHECK(p); memset(p, 1, sizes[i] < MIB ? sizes[i] : MIB);
            errno = 4242; free(p);
            CHECK(errno == 4242, "free of %zu changed errno", sizes[i]);
        }
    static void *many[20000];
    for (int i = 0; i < 20000; i++) many[i] = malloc(1000);
    for (int i = 0; i < 20000; i++) { errno = 4242; free(many[i]); CHECK(errno == 4242); }
    errno = 4242; free(NULL); CHECK(errno == 4242);
}

static void trim(void)
{
    enum { N = 64 * 1024 };
    static void *p[N];
    for (int i = 0; i < N; i++) { CHECK((p[i] = malloc(1024))); memset(p[i], 1, 1024); }
    void *top = malloc(1024);
    size_t peak = resident();
    for (int i = 0; i < N; i++) free(p[i]);
    size_t before = resident();
    int said = malloc_trim(0);
    size_t after = resident();
    CHECK(said == 0 || said == 1);
    CHECK(said == 1 || before < after + MIB, "gave back %zu and said 0", before - after);
    CHECK(peak > after + 56 * MIB, "RSS %zu at the peak, %zu after trim", peak, after);
    free(top);
    malloc_trim(0);
    malloc_trim(0);
}

static void own_stats(void)
{
    int (*stats)(struct ebb_stats *, size_t) =
        (int (*)(struct ebb_stats *, size_t))dlsym(RTLD_DEFAULT, "ebb_stats");
    if (!stats) { skipped("no ebb_stats in this library"); return; }
    struct ebb_stats a, b;
    memset(&a, 0xff, sizeof a);
    CHECK(stats(&a, sizeof a) == (int)sizeof a && a.version == EBB_STATS_VERSION && a.pid == (uint64_t)getpid());
    void *large = malloc(hide(50 * MIB)), *small = malloc(hide(100 * KIB));
    CHECK(stats(&b, sizeof b) == (int)sizeof b);
    CHECK(b.live_bytes >= a.live_bytes + 50 * MIB && b.large_bytes >= a.large_bytes + 50 * MIB);
    memset(&b, 0xff, sizeof b);
    CHECK(stats(&b, 16) == 16 && b.version == EBB_STATS_VERSION && b.large_bytes == UINT64_MAX, "only what fits is written");
    errno = 0;
    CHECK(stats(NULL, sizeof b) == -1 && errno == EINVAL);
    CHECK(stats(&b, 4) == -1);
    free(large); free(small);
    CHECK(stats(&b, sizeof b) == (int)sizeof b && b.large_bytes < 50 * MIB);
    CHECK(b.released_bytes + b.dirty_bytes + b.pending_bytes >= 50 * MIB);
}

static void info(void)
{
    enum { N = 10 * 1024 };
    static void *p[N];
    struct mallinfo2 a = mallinfo2();
    for (int i = 0; i < N; i++) CHECK((p[i] = malloc(1024)));
    void *large = malloc(50 * MIB);
    struct mallinfo2 b = mallinfo2();
    size_t grown = b.uordblks + b.hblkhd - a.uordblks - a.hblkhd;
    CHECK(grown > 58 * MIB && grown < 75 * MIB, "mallinfo2 grew by %zu", grown);
    struct mallinfo old = mallinfo();
    CHECK((size_t)old.uordblks + old.hblkhd > 58 * MIB, "mallinfo");
    free(large);
    for (int i = 0; i < N; i++) free(p[i]);
    struct mallinfo2 c = mallinfo2();
    CHECK(c.uordblks + c.hblkhd + 55 * MIB < b.uordblks + b.hblkhd, "mallinfo2 did not fall");
    CHECK(malloc_info(0, stdout) == 0);
    CHECK(malloc_info(1, stdout) != 0, "options other than 0 are refused");
    malloc_stats();
    own_stats();
    CHECK((unsigned)mallopt(M_MMAP_THRESHOLD, 1 << 20) <= 1);
    CHECK((unsigned)mallopt(-9999, 1) <= 1);
}

static void sized(void)
{
    void (*free_sized)(void *, size_t) = dlsym(RTLD_DEFAULT, "free_sized");
    void (*free_aligned_sized)(void *, size_t, size_t) = dlsym(RTLD_DEFAULT, "free_aligned_sized");
    if (!free_sized || !free_aligned_sized) { skipped("no free_sized in this library"); return; }
    for (size_t n = 1; n < 8 * MIB; n += n / 3 + 1) {
        void *p = malloc(n); CHECK(p); fill(p, n, 1);
        errno = 4242; free_sized(p, n); CHECK(errno == 4242);
        p = calloc(1, n); CHECK(p); free_sized(p, n);
        p = realloc(malloc(7), n); CHECK(p); free_sized(p, n);
        for (size_t a = 16; a <= 64 * KIB; a *= 8) {
            p = aligned_alloc(a, n); CHECK(p && (uintptr_t)p % a == 0);
            errno = 4242; free_aligned_sized(p, a, n); CHECK(errno == 4242);
        }
    }
    free_sized(NULL, 10); free_aligned_sized(NULL, 16, 10);
}

int main(int argc, char **argv)
{
    static const struct { const char *name; void (*run)(void); } topics[] = {
        {"basic", basic}, {"too_big", too_big}, {"ram", ram}, {"align", align}, {"zero", zero}, {"mix", neighbours},
        {"resize", resize}, {"usable", usable}, {"errno", errnos}, {"trim", trim}, {"info", info},
        {"sized", sized} };
    for (unsigned i = 0; argc > 1 && i < sizeof topics / sizeof *topics; i++)
        if (!strcmp(argv[1], topics[i].name)) { topics[i].run(); return passed(); }
    CHECK(0, "api TOPIC");
}
