/* A process near the limit of its memory: near_limit MODE
 *   grow     garbage between live objects, then large blocks: fits into 256 MiB only if the garbage goes in time
 *   blocks   large blocks that are freed, then objects: the same the other way round
 *   fork     a forked child near the limit, whose huge pages are its parent's: no call takes long
 *   reclone  the same after a raw clone: the child has given its heap up
 *   limit N [M]  with limit=: free memory, cached objects and empty pages together stay below N MiB, of M MiB and more */
#include "stats.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { MANY = 1 << 16 };
static void **objects;

/* 1 of 11 objects of 16 to 48 KiB stays. */
static void garbage(size_t total)
{
    uint64_t seed = 3;
    size_t count = 0;
    objects = mmap(NULL, MANY * sizeof *objects, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    for (size_t all = 0; all < total; count++) {
        size_t size = 16 * KIB + rnd(&seed) % (32 * KIB);
        CHECK(count < MANY && (objects[count] = malloc(size)));
        memset(objects[count], 1, size);
        all += size;
    }
    for (size_t i = 0; i < count; i++)
        if (i % 11) { free(objects[i]); objects[i] = NULL; }
}

static void grow(size_t total)
{
    double longest = 0;
    for (size_t all = 0; all < total; all += 4 * MIB) {
        double t = now();
        char *block = malloc(4 * MIB);
        if (now() - t > longest) longest = now() - t;
        CHECK(block);
        memset(block, 2, 4 * MIB);
    }
    printf("longest call %.1f ms, events %lu\n", longest * 1e3, stats().pressure_events);
}

static void blocks(void)
{
    enum { COUNT = 12 };
    char *block[COUNT];
    for (int i = 0; i < COUNT; i++) block[i] = filled(15 * MIB);
    for (int i = 0; i < COUNT; i++) free(block[i]);
    /* Twice as large: none fits where those were, but all of it is dirty. */
    for (int i = 0; i < 3; i++) filled(72 * MIB);
}

static int child_near_limit(void)
{
    double longest = 0;
    char *kept[64];
    int n = 0;
    for (int round = 0; round < 40; round++) {
        double t = now();
        char *block = malloc(2 * MIB + (round % 7) * 64 * KIB);
        double took = now() - t;
        if (took > longest) longest = took;
        if (!block) break;
        memset(block, 3, 2 * MIB);
        if (round % 2) { t = now(); free(block); took = now() - t; if (took > longest) longest = took; }
        else kept[n++] = block;
    }
    while (n) free(kept[--n]);
    printf("longest call %.1f ms\n", longest * 1e3);
    fflush(stdout);
    return longest < 0.5 ? 0 : 7;
}

static void forked(int raw)
{
    enum { COUNT = 400 };
    static char *block[COUNT];
    /* 160 MiB in huge pages, every second MiB of it free when the child begins. */
    for (int i = 0; i < 160; i++) block[i] = filled(MIB);
    for (int i = 0; i < 160; i += 2) free(block[i]);
    pid_t pid = raw ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    CHECK(pid >= 0);
    if (!pid) _exit(child_near_limit());
    must_end_well(pid);
}

/* A soft bound: what this loop frees itself may be on top. */
static void below(size_t most, size_t bytes)
{
    garbage(100 * MIB);
    free(filled(bytes));
    uint64_t kept = 0;
    struct ebb_stats last = {0};
    for (int i = 0; i < 300; i++) {
        usleep(10000);
        free(malloc(300 * KIB));
        last = stats();
        kept = last.dirty_bytes + last.lazy_bytes + last.cached_bytes;
        if (kept <= most && resident() < most + 60 * MIB) break;
    }
    CHECK(kept <= most, "kept: %zu dirty, %zu lazy, %zu cached", (size_t)last.dirty_bytes, (size_t)last.lazy_bytes, (size_t)last.cached_bytes);
    CHECK(resident() < most + 60 * MIB, "%zu resident", resident());
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (is(mode, "grow")) {
        garbage(150 * MIB);
        grow(200 * MIB);
    } else if (is(mode, "blocks")) {
        blocks();
    } else if (is(mode, "fork") || is(mode, "reclone")) {
        forked(is(mode, "reclone"));
    } else {
        CHECK(is(mode, "limit") && argc > 2, "near_limit MODE");
        below(atol(argv[2]) * MIB + MIB, (argc > 3 ? atol(argv[3]) : 100) * MIB);
    }
    return passed();
}
