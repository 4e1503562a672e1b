/* Processors that go and come back, as root: processors SECONDS
 * Threads churn objects and hand some to each other over a board, while all processors but the first go
 * offline and online in turn. Before, a processor goes with a full cache: its memory must be had all the same. */
#include "stats.h"
#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 8, BOARD = 256, CACHED = 4000 };
static void *_Atomic board[BOARD];
static _Atomic int stop;
static _Atomic long handed;

/* Objects of the board carry their size and a pattern. */
static void *make(uint64_t *s)
{
    size_t n = sizeof n + log_size(s, rnd(s) % 50 ? 11 : 19);
    size_t *p = malloc(n);
    CHECK(p, "%zu bytes", n);
    *p = n;
    fill(p + 1, n - sizeof n, n);
    return p;
}

static void drop(size_t *p)
{
    if (!p) return;
    VERIFY(p + 1, *p - sizeof *p, *p);
    free(p);
}

static void *worker(void *arg)
{
    uint64_t s = (uintptr_t)arg;
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        drop(atomic_exchange(&board[rnd(&s) % BOARD], make(&s)));
        atomic_fetch_add_explicit(&handed, 1, memory_order_relaxed);
    }
    return NULL;
}

static void cache_of_a_gone_processor(int cpu, cpu_set_t all)
{
    static void *p[CACHED];
    pin(cpu);
    for (int i = 0; i < CACHED; i++) CHECK((p[i] = malloc(1000)));
    for (int i = 0; i < CACHED; i++) free(p[i]);
    CHECK(sched_setaffinity(0, sizeof all, &all) == 0);
    CHECK(set_online(cpu, 0));
    if (has_stats()) {
        uint64_t cached = stats().cached_bytes;
        CHECK(cached > 32 * KIB, "%lu bytes cached", cached);
        release();
        cached = stats().cached_bytes;
        CHECK(cached < 8 * KIB, "%lu bytes stay cached", cached);
    }
    churn(cpu, 5000, 300, 14);
    CHECK(set_online(cpu, 1));
    pin(cpu);
    churn(cpu, 5000, 300, 14);
    CHECK(sched_setaffinity(0, sizeof all, &all) == 0);
}

int main(int argc, char **argv)
{
    double end = now() + (argc > 1 ? number(argv[1]) : 2);
    cpu_set_t all;
    pthread_t t[THREADS];
    int configured = sysconf(_SC_NPROCESSORS_CONF), turns = 0;
    CHECK(sched_getaffinity(0, sizeof all, &all) == 0);
    if (geteuid() != 0 || configured < 2 || !CPU_ISSET(1, &all)) return skipped("no processor can go");
    cache_of_a_gone_processor(1, all);
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&t[i], NULL, worker, (void *)(intptr_t)(i + 1)) == 0);
    uint64_t s = 5;
    while (now() < end || turns < 4 || handed < 1000) {
        int cpu = 1 + rnd(&s) % (configured - 1);
        turns += set_online(cpu, rnd(&s) % 2);
        if (turns % 4 == 0 && argc > 2) free(memset(malloc(20 * MIB), 1, 20 * MIB));
    }
    for (int cpu = 1; cpu < configured; cpu++) set_online(cpu, 1);
    stop = 1;
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
    for (int i = 0; i < BOARD; i++) drop(board[i]);
    printf("%d turns, %ld objects\n", turns, handed);
    return passed();
}
