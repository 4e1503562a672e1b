/* How long workers live, and what they do to the program beside memory: worker_life MODE
 *   threads  the worker has a name, sleeps without a timer, and is gone some seconds after the last work
 *   polls    nor does it stay for the little that a program at its polling leaves behind
 *   early    the worker that was made in advance sees what is free in half-used spans, too, before the window is over
 *   awaits   and is gone when nothing came of it, however long the window is
 *   setuid   with a worker alive, setuid() does not hang
 *   last     main ends by pthread_exit beside a worker: its output is not lost, its end not late
 *   stack    a thread with the smallest stack releases in place
 *   cpu      with one CPU, and with CPUs that change meanwhile */
#include "process.h"
#include "sparse.h"
#include <pthread.h>

static int comes_and_goes(size_t start)
{
    void *some[30];
    for (int i = 0; i < 30; i++) CHECK((some[i] = malloc(MIB)));
    CHECK(workers() == 0, "a small program has a worker");
    for (int i = 0; i < 6; i++) free(some[i]);
    CHECK(workers() == 0, "a worker for 6 MiB");
    for (int i = 6; i < 30; i++) free(some[i]);
    /* It is made when much is asked for, so that free() need not. */
    void *much = malloc(64 * MIB);
    usleep(200000);
    if (!workers()) return skipped("no worker");
    free(memset(much, 1, 64 * MIB));
    usleep(2500000);
    CHECK(workers());
    long before = sleeps(getpid(), 0);
    CHECK(usleep(2000000) == 0 && workers());
    long after = sleeps(getpid(), 0);
    /* One look a second at what the main thread may do. */
    CHECK(after - before <= 3, "%ld wake-ups of an idle worker in 2 s", after - before);
    for (int i = 0; i < 160 && workers(); i++) usleep(100000);
    CHECK(workers() == 0, "the worker stays");
    free(filled(64 * MIB));
    wait_below(start + 16 * MIB, 6);
    return passed();
}

static int polls(void)
{
    free(filled(64 * MIB));
    usleep(200000);
    if (!workers()) return skipped("no worker");
    int gone = 0;
    for (int i = 0; i < 1700 && !(gone = i % 10 == 0 && !workers()); i++) {
        void *p[2];
        for (int j = 0; j < 2; j++) { CHECK((p[j] = malloc(900000))); memset(p[j], 1, 900000); }
        for (int j = 0; j < 2; j++) free(p[j]);
        churn(i, 50, 20, 9);
        usleep(10000);
    }
    CHECK(gone, "the worker stays");
    return passed();
}

static int early(void)
{
    /* Pages of half-used spans, none of which gets empty. For a window of 4 s and small pages. */
    enum { OBJECTS = 20000, KEPT = 8 };
    static char *p[OBJECTS];
    for (int i = 0; i < OBJECTS; i++) { CHECK((p[i] = malloc(4096))); fill(p[i], 4096, i); }
    CHECK(malloc(64 * MIB));
    usleep(500000);
    if (!workers()) return skipped("no worker");
    size_t most = resident();
    for (int i = 0; i < OBJECTS; i++) if (i % KEPT) free(p[i]);
    CHECK(resident() > most - 4 * MIB, "%zu of %zu", resident(), most);
    printf("back after %.2f s\n", wait_below(most - 50 * MIB, 6.5));
    for (int i = 0; i < OBJECTS; i += KEPT) VERIFY(p[i], (size_t)4096, i);
    return passed();
}

static int awaits(void)
{
    CHECK(malloc(64 * MIB));
    usleep(200000);
    if (!workers()) return skipped("no worker");
    for (int i = 0; i < 150 && workers(); i++) usleep(100000);
    CHECK(workers() == 0, "the worker stays");
    return passed();
}

static int changes_user(void)
{
    free(filled(64 * MIB));
    usleep(100000);
    if (!workers()) skipped("no worker");
    alarm(10);
    CHECK(setuid(getuid()) == 0);
    return passed();
}

static int main_leaves(void)
{
    free(filled(64 * MIB));
    printf("ok\n");
    alarm(5);
    pthread_exit(NULL);
}

static void *small_stack(void *arg)
{
    for (int i = 0; i < 100; i++) {
        char *p[6];
        for (int j = 0; j < 6; j++) { CHECK((p[j] = malloc(900000))); memset(p[j], 1, 900000); }
        for (int j = 0; j < 6; j++) free(p[j]);
        usleep(12000);
    }
    return arg;
}

static int smallest_stack(void)
{
    pthread_attr_t attributes;
    pthread_t thread;
    pthread_attr_init(&attributes);
    CHECK(pthread_attr_setstacksize(&attributes, 16384) == 0);
    CHECK(pthread_create(&thread, &attributes, small_stack, NULL) == 0);
    pthread_join(thread, NULL);
    return passed();
}

static void pin_to(int first, int count)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = first; i < first + count; i++) CPU_SET(i, &set);
    if (sched_setaffinity(0, sizeof set, &set)) skipped("no such CPU");
}

static int changing_cpus(size_t start)
{
    for (int round = 0; round < 3; round++) {
        /* One; another one while a worker that knew the first is awake; two. */
        pin_to(round == 1, 1 + (round == 2));
        free(filled(256 * MIB));
        usleep(900000);
        pin_to(round == 0, 1 + (round == 1));
        wait_below(start + 16 * MIB, 6);
    }
    return passed();
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    size_t start = resident();
    if (is(mode, "threads")) return comes_and_goes(start);
    if (is(mode, "polls")) return polls();
    if (is(mode, "early")) return early();
    if (is(mode, "awaits")) return awaits();
    if (is(mode, "setuid")) return changes_user();
    if (is(mode, "last")) return main_leaves();
    if (is(mode, "stack")) return smallest_stack();
    if (is(mode, "cpu")) return changing_cpus(start);
    CHECK(0, "worker_life MODE");
}
