/* The last run that a CPU freed, kept for its next request of as many bytes: spare MODE.
 *   again    the same place comes back, to requests of that size alone; calloc reads zero
 *   trim     malloc_trim gives it back
 *   idle     looks of slow paths do, when nobody wants it
 *   never    nothing is kept, as configured
 *   fork     children of a program whose other threads free and take such runs get each place once */
#include "stats.h"
#include <malloc.h>
#include <pthread.h>

enum { RUN = 1536 << 10, CHILDREN = 150, LIVE = 12 };
static cpu_set_t all;

static uint64_t cached(void) { return stats().cached_bytes; }

static void again(void)
{
    char *p = filled(RUN);
    free(p);
    CHECK(cached() >= RUN);
    char *other = filled(RUN - 8 * PAGE);
    CHECK(other != p);
    char *same = malloc(RUN);
    CHECK(same == p && cached() < RUN);
    free(same);
    same = calloc(RUN, 1);
    CHECK(same == p);
    for (size_t n = 0; n < RUN; n++) CHECK(!same[n]);
    /* It grows and shrinks like any other, and is kept as what it is then. */
    same = realloc(same, RUN - 16 * PAGE);
    memset(same, 0x5a, RUN - 16 * PAGE);
    free(same);
    char *last = malloc(RUN - 16 * PAGE);
    CHECK(last == same);
    char *aligned;
    free(last);
    CHECK(!posix_memalign((void **)&aligned, MIB, RUN - 16 * PAGE));
    CHECK(!((uintptr_t)aligned % MIB));
    free(aligned);
    free(other);
}

/* Threads that free and take on all CPUs. */
static volatile int over;
static void *busy(void *sizes)
{
    (void)sizes;
    char *held[3] = { 0 };
    for (unsigned n = 0; !over; n++) {
        size_t size = (320 + 4 * (n % 3)) << 10;
        free(held[n % 3]);
        held[n % 3] = malloc(size);
        CHECK(held[n % 3]);
        held[n % 3][0] = 1;
    }
    for (int n = 0; n < 3; n++) free(held[n]);
    return 0;
}

/* All places that a child is given are its own, whatever CPU it asks on. */
static void child(void)
{
    char *live[LIVE];
    size_t size[LIVE];
    for (int n = 0; n < LIVE; n++) {
        int cpu = n % 2 ? 1 : 0;
        try_pin(CPU_ISSET(cpu, &all) ? cpu : sched_getcpu());
        size[n] = (320 + 4 * (n % 3)) << 10;
        live[n] = malloc(size[n]);
        CHECK(live[n]);
        memset(live[n], n + 1, size[n]);
    }
    for (int n = 0; n < LIVE; n++)
        for (size_t at = 0; at < size[n]; at += 512) CHECK(live[n][at] == n + 1);
    for (int n = 0; n < LIVE; n++) free(live[n]);
    _exit(0);
}

static void forks(pid_t (*make)(void))
{
    pthread_t threads[3];
    over = 0;
    for (int n = 0; n < 3; n++) CHECK(!pthread_create(&threads[n], 0, busy, 0));
    for (int n = 0; n < CHILDREN; n++) {
        pid_t pid = make();
        CHECK(pid >= 0);
        if (!pid) child();
        must_end_well(pid);
    }
    over = 1;
    for (int n = 0; n < 3; n++) CHECK(!pthread_join(threads[n], 0));
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    CHECK(!sched_getaffinity(0, sizeof all, &all));
    if (!strcmp(argv[1], "fork")) {
        forks(fork);
        forks(_Fork);
        return passed();
    }
    pin(sched_getcpu());
    if (!strcmp(argv[1], "again")) {
        again();
        return passed();
    }
    free(filled(RUN));
    if (!strcmp(argv[1], "never")) {
        CHECK(cached() < RUN);
        return passed();
    }
    CHECK(cached() >= RUN);
    if (!strcmp(argv[1], "trim")) {
        malloc_trim(0);
    } else {
        CHECK(!strcmp(argv[1], "idle"));
        for (int n = 0; n < 150 && cached() >= RUN; n++) {
            usleep(20000);
            free(malloc(3 << 20));
        }
    }
    CHECK(cached() < RUN);
    return passed();
}
