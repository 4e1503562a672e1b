/* Per-CPU counters under everything at once: percpu SECONDS [move] [processors]
 * Threads add to the counters that are there while the main thread makes areas and frees them, so that pages go
 * back and come again. Each sum must be what was added, and a new area must be zero on every CPU.
 * `move`: the threads change their CPU now and then; `processors`: CPUs go offline and come back (root). */
#include "areas.h"
#include <pthread.h>
#include <stdatomic.h>

enum { THREADS = 8, KEPT = 16, AREAS = 600, BYTES = 4000, WORDS = BYTES / 8 };
static ebb_percpu *kept[KEPT];
static _Atomic uint64_t added[KEPT];
static _Atomic int stop;
static int move, cpus;

static void *writer(void *arg)
{
    uint64_t s = (uintptr_t)arg, mine[KEPT] = {0};
    for (long i = 0; !atomic_load_explicit(&stop, memory_order_relaxed); i++) {
        uint64_t r = rnd(&s);
        int k = r % KEPT;
        area_add(kept[k], (r >> 8) % WORDS * 8, r >> 40);
        mine[k] += r >> 40;
        if (move && i % 500 == 0) try_pin(r % cpus);
    }
    for (int k = 0; k < KEPT; k++) added[k] += mine[k];
    return NULL;
}

int main(int argc, char **argv)
{
    static ebb_percpu *areas[AREAS];
    double end = now() + (argc > 1 ? number(argv[1]) : 1);
    int processors = 0, rounds = 0;
    uint64_t s = 9;
    for (int i = 2; i < argc; i++) {
        if (is(argv[i], "move")) move = 1;
        else if (is(argv[i], "processors")) processors = 1;
        else CHECK(0, "what is %s?", argv[i]);
    }
    if (!find_areas()) return skipped("no per-CPU data in this library");
    cpus = sysconf(_SC_NPROCESSORS_CONF);
    CHECK((int)area_cpus() >= cpus);
    pthread_t t[THREADS];
    for (int k = 0; k < KEPT; k++) {
        CHECK((kept[k] = area_alloc(BYTES, 64)));
        /* Far from the next one, so that pages between them can go. */
        for (int i = 0; i < AREAS / KEPT; i++) CHECK((areas[k * (AREAS / KEPT) + i] = area_alloc(BYTES, 8)));
    }
    for (int i = 0; i < THREADS; i++)
        CHECK(pthread_create(&t[i], NULL, writer, (void *)(intptr_t)(i + 1)) == 0);
    for (; now() < end || rounds < 2; rounds++) {
        for (int i = 0; i < AREAS; i++) { area_free(areas[i]); areas[i] = NULL; }
        usleep(rnd(&s) % 300000);
        if (processors) set_online(1 + rnd(&s) % (cpus - 1), rounds % 2);
        for (int i = 0; i < AREAS; i++) {
            CHECK((areas[i] = area_alloc(BYTES, 8)));
            for (int cpu = 0; cpu < cpus; cpu++) {
                unsigned char *copy = area_ptr(areas[i], cpu);
                CHECK(not_zero(copy, BYTES) < 0, "area %d on CPU %d", i, cpu);
                memset(copy, i + cpu, BYTES);
            }
        }
        for (int i = 0; i < AREAS; i++)
            for (int cpu = 0; cpu < cpus; cpu++) {
                unsigned char *copy = area_ptr(areas[i], cpu);
                for (int b = 0; b < BYTES; b++)
                    CHECK(copy[b] == (unsigned char)(i + cpu), "area %d on CPU %d, byte %d", i, cpu, b);
            }
    }
    if (processors) for (int cpu = 1; cpu < cpus; cpu++) set_online(cpu, 1);
    stop = 1;
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
    for (int k = 0; k < KEPT; k++) {
        uint64_t sum = 0, wanted = added[k];
        for (int word = 0; word < WORDS; word++) sum += area_sum(kept[k], word * 8);
        CHECK(sum == wanted, "counter %d: %lu instead of %lu", k, sum, wanted);
    }
    printf("%d rounds\n", rounds);
    return passed();
}
