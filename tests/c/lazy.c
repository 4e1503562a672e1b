/* Tests memory that becomes lazy (MADV_FREE) before it is released: lazy MODE. The caller sets lazyfree and short
 * windows.
 *   content  a lazy page reads as it was or zero, a store sticks, also when the kernel takes pages; calloc reads zero
 *   fork     the same in a child and its parent, each on its own
 *   goes     lazy memory is released without a call, and RSS without it falls at once
 *   never    nothing becomes lazy
 *   auto     memory becomes lazy only if it is needed again and again
 *   huge     huge pages stay whole
 *   idle     prints the resident memory of an idle program after 2.5 s, without lazy pages, and after 8 s, with them
 *   locked   locked memory cannot be lazy: it is released */
#include "process.h"
#include "stats.h"
#include <sys/mman.h>

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

enum { BLOCKS = 48, BLOCK = 2 << 20, WORDS = BLOCK / 8, STEP = 4096 / 8 };
static uint64_t *block[BLOCKS];

/* One word a page: where it is, and in which round it was written. */
static uint64_t word(const uint64_t *at, uint64_t round) { return mix((uintptr_t)at) << 8 | round; }

/* What each page got last: blocks come back at other addresses where a worker is at theirs just then. */
enum { SEEN = 1 << 18 };
static struct { const uint64_t *at; uint64_t last; } seen[SEEN];
static uint64_t *last(const uint64_t *at)
{
    size_t n = mix((uintptr_t)at) % SEEN;
    while (seen[n].at && seen[n].at != at) n = (n + 1) % SEEN;
    seen[n].at = at;
    return &seen[n].last;
}

static void get(void) { for (int i = 0; i < BLOCKS; i++) CHECK((block[i] = malloc(BLOCK))); }
static void put(void) { for (int i = 0; i < BLOCKS; i++) free(block[i]); }

static void write_all(uint64_t round, int step)
{
    for (int i = 0; i < BLOCKS; i++)
        for (int j = 0; j < WORDS; j += STEP * step) *last(&block[i][j]) = block[i][j] = word(&block[i][j], round);
}

/* Waits until much is lazy. */
static void wait_lazy(void)
{
    for (int i = 0; i < 3000; i++) {
        if (stats().lazy_bytes > BLOCKS * (size_t)BLOCK / 2) return;
        usleep(10000);
    }
    CHECK(0, "%zu bytes are lazy after 30 s", (size_t)stats().lazy_bytes);
}

/* Lets the kernel take pages, lazy ones at once. Without swap it takes no others. */
static void take_away(int from) { for (int i = from; i < BLOCKS; i += 2) madvise(block[i], BLOCK, MADV_PAGEOUT); }

/* What was written last, or zero; how many were which. */
static void check_old(int written, uint64_t now, const char *who)
{
    long old = 0, zero = 0;
    for (int i = 0; i < BLOCKS; i++)
        for (int j = 0; j < WORDS; j += STEP) {
            uint64_t *at = &block[i][j];
            if (written && j % (STEP * written) == 0) { CHECK(*at == word(at, now), "%s: a store was lost", who); continue; }
            if (*at == 0) zero++;
            else { CHECK(*at == *last(at), "%s: %p holds %#lx, neither zero nor %#lx", who, (void *)at, *at, *last(at)); old++; }
        }
    printf("%s: %ld old, %ld zero\n", who, old, zero);
}

static void content(void)
{
    for (uint64_t round = 1; round < 4; round++) {
        get();
        write_all(round, 1);
        put();
        wait_lazy();
        take_away(0);
        get();
        check_old(0, 0, "after");
        write_all(round + 100, 3);
        take_away(1);
        check_old(3, round + 100, "stores");
        write_all(round, 1);
        put();
        wait_lazy();
        size_t reused = stats().lazy_reused_bytes;
        for (int i = 0; i < BLOCKS; i++) {
            CHECK((block[i] = calloc(1, BLOCK)));
            CHECK(not_zero(block[i], BLOCK) < 0, "calloc in round %d", (int)round);
        }
        reused = stats().lazy_reused_bytes - reused;
        CHECK(reused > BLOCKS * (size_t)BLOCK / 4 && reused <= stats().lazied_bytes, "%zu", reused);
        write_all(round, 1);
        put();
        wait_lazy();
    }
    /* Small objects in frames that were lazy. */
    static unsigned char *small[20000];
    for (int i = 0; i < 20000; i++) {
        CHECK((small[i] = calloc(1, 1000)));
        CHECK(not_zero(small[i], 1000) < 0);
        memset(small[i], i, 1000);
    }
    for (int i = 0; i < 20000; i++) { CHECK(small[i][999] == (unsigned char)i); free(small[i]); }
}

static void forked(void)
{
    get();
    write_all(1, 1);
    put();
    wait_lazy();
    get();
    write_all(2, 2);
    for (int n = 0; n < 4; n++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            check_old(2, 2, "child");
            take_away(0);
            check_old(2, 2, "child");
            for (int i = 0; i < BLOCKS; i++) for (int j = 0; j < WORDS; j += STEP) block[i][j] = 7;
            take_away(1);
            for (int i = 0; i < BLOCKS; i++) for (int j = 0; j < WORDS; j += STEP) CHECK(block[i][j] == 7);
            put();
            release();
            struct ebb_stats s = stats();
            /* A worker that has lost its CPU may still have some of it. */
            for (int i = 0; i < 50 && s.lazy_bytes; i++) { usleep(20000); release(); s = stats(); }
            CHECK(s.lazy_bytes == 0 && s.dirty_bytes < 4 * MIB, "%zu lazy, %zu dirty", (size_t)s.lazy_bytes, (size_t)s.dirty_bytes);
            get();
            for (int i = 0; i < BLOCKS; i++) CHECK(not_zero(block[i], BLOCK) < 0);
            _exit(0);
        }
        take_away(n & 1);
        must_end_well(child);
        check_old(2, 2, "parent");
    }
    put();
    /* Children that find lazy memory use it, and one gives it back without workers of its parent's. */
    wait_lazy();
    pid_t child = fork();
    if (child == 0) {
        get();
        for (int i = 0; i < BLOCKS; i++) for (int j = 0; j < WORDS; j += STEP) { block[i][j] = i; CHECK(block[i][j] == (unsigned)i); }
        churn(5, 20000, 300, 18);
        put();
        for (int i = 0; stats().lazy_bytes > 16 * MIB; i++) { CHECK(i < 3000); free(malloc(MIB)); usleep(10000); }
        _exit(0);
    }
    must_end_well(child);
}

static void goes(void)
{
    size_t before = all_stats().rss_bytes;
    get();
    write_all(1, 1);
    put();
    /* Not lazy: 96 MiB less. Then none at all. */
    for (int i = 0; all_stats().rss_without_lazy_bytes > before + 12 * MIB; i++) { CHECK(i < 3000); usleep(10000); }
    printf("without lazy pages %zu, with them %zu\n", (size_t)all_stats().rss_without_lazy_bytes, (size_t)all_stats().rss_bytes);
    CHECK(stats().lazied_bytes > BLOCKS * (size_t)BLOCK / 2);
    for (int i = 0; all_stats().rss_bytes > before + 12 * MIB || stats().lazy_bytes; i++) { CHECK(i < 3000); usleep(10000); }
}

static void never(void)
{
    for (int n = 0; n < 4; n++) {
        size_t released = stats().released_bytes;
        get();
        write_all(1, 1);
        put();
        for (int i = 0; stats().released_bytes < released + BLOCKS * (size_t)BLOCK / 2; i++) { CHECK(i < 3000); usleep(10000); }
    }
    CHECK(stats().lazied_bytes == 0 && stats().lazy_bytes == 0);
}

static void automatic(void)
{
    struct ebb_stats s = stats();
    CHECK(s.lazied_bytes == 0 && s.lazy_zones == 0);
    for (int n = 0; n < 200; n++) {
        size_t given = s.released_bytes + s.lazied_bytes;
        get();
        write_all(1, 1);
        put();
        for (int i = 0; i < 500; i++) {
            s = stats();
            if (s.released_bytes + s.lazied_bytes >= given + BLOCKS * (size_t)BLOCK / 2) break;
            usleep(10000);
        }
        CHECK(n || s.lazied_bytes == 0, "lazy at once");
        if (s.lazied_bytes > 0) {
            CHECK(s.lazy_zones > 0 && s.reused_bytes > s.unused_bytes / 10);
            printf("lazy in round %d: %zu reused, %zu not\n", n, (size_t)s.reused_bytes, (size_t)s.unused_bytes);
            return;
        }
    }
    CHECK(0, "never lazy: %zu reused, %zu not", (size_t)s.reused_bytes, (size_t)s.unused_bytes);
}

static void huge(void)
{
    size_t size = 512 * MIB;
    char *p = filled(size);
    size_t before = rollup("AnonHugePages:");
    if (before < size / 2) { skipped("no huge pages"); free(p); return; }
    free(p);
    wait_lazy();
    while (stats().pending_bytes) usleep(1000);
    size_t after = rollup("AnonHugePages:"), lazy = stats().lazy_bytes;
    printf("huge: %zu before, %zu after; %zu lazy, %zu by the kernel\n", before, after, lazy, rollup("LazyFree:"));
    CHECK(after + 32 * MIB >= before || stats().lazy_bytes < lazy);
}

static void idle(void)
{
    /* The default window is a second: what goes is wanted again. */
    for (int n = 0; n < 3; n++) {
        if (n) usleep(1800000);
        get();
        write_all(1, 1);
        put();
    }
    usleep(2500000);
    struct ebb_stats s = stats();
    size_t without = rollup("Rss:") - rollup("LazyFree:"), lazy = s.lazy_bytes;
    usleep(5500000);
    printf("%zu MiB without lazy pages, %zu MiB with them, %zu MiB were lazy\n", without / MIB, rollup("Rss:") / MIB, lazy / MIB);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (is(mode, "content")) content();
    else if (is(mode, "fork")) forked();
    else if (is(mode, "goes")) goes();
    else if (is(mode, "never")) never();
    else if (is(mode, "auto")) automatic();
    else if (is(mode, "huge")) huge();
    else if (is(mode, "idle")) idle();
    else if (is(mode, "locked")) {
        get();
        for (int i = 0; i < BLOCKS; i++)
            if (mlock(block[i], BLOCK)) return skipped("locked memory is limited");
        put();
        never();
    } else CHECK(0, "mode %s", mode);
    return passed();
}
