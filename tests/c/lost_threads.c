/* Filters that kill or hinder threads of the library, or those that work for it: lost_threads MODE
 *   killed CALL...      a filter kills the thread that makes one of these, by number: workers, one by one. What waits for
 *                       them does not wait for ever
 *   orphan              one kills the worker when it gives back what it has claimed: that is given back by others
 *   spans               so with pages of half-used spans, while the program goes on: no call asks for it
 *   fence               one kills a thread that drains the caches of others, and one that forks: no lock is left behind
 *   maker               one kills the thread that makes a worker: nobody waits for that worker, and others make one
 *   lazy                a worker ends after it made memory lazy, and no other can be made: the program releases that
 *   table ERRNO         a worker cannot leave the program's descriptors: it opens nothing there */
#include "filter.h"
#include "process.h"
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>

static void killed(int calls, char **numbers)
{
    enum { OBJECTS = 10000, BYTES = 8000 };
    static void *p[OBJECTS];
    promise();
    for (int call = 0; call < calls; call++) answer_call(atoi(numbers[call]), SECCOMP_RET_KILL_THREAD);
    for (int round = 0; round < 3; round++) {
        /* Parts of huge pages, which threads of the program leave to a worker. */
        for (int i = 0; i < OBJECTS; i++) { CHECK((p[i] = malloc(BYTES))); fill(p[i], BYTES, i); }
        for (int i = 0; i < OBJECTS; i++) if (i % 11) free(p[i]);
        size_t most = resident();
        double start = now();
        CHECK(malloc_trim(0) == 1 && resident() < most - 30 * MIB, "%zu of %zu stay", resident(), most);
        CHECK(now() - start < 3, "%.1f s", now() - start);
        for (int i = 0; i < OBJECTS; i += 11) { VERIFY(p[i], BYTES, i); free(p[i]); }
    }
}

/* The first worker is made by this thread, and under its filter. */
static void *grow_under_filter(void *size)
{
    struct sock_filter f[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_madvise, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[3])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_DONTNEED, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_THREAD), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
    promise_unseen();
    install(f, sizeof f / sizeof *f, 0);
    return malloc((size_t)size);
}

/* Waits until there are so many: who has been joined, or killed, is in the list a moment longer. */
static int threads_come_to(int n)
{
    for (double start = now(); threads() != n; usleep(10000)) if (now() - start > 10) return 0;
    return 1;
}

static void orphan(void)
{
    pthread_t t;
    void *block;
    char *beside = malloc(MIB);
    memset(beside, 5, MIB);
    CHECK(!pthread_create(&t, NULL, grow_under_filter, (void *)(200 * MIB)) && !pthread_join(t, &block) && block);
    CHECK(threads_come_to(2), "%d threads", threads());
    size_t start = resident();
    memset(block, 7, 200 * MIB);
    free(block);
    /* It is due after the window; the worker takes it, and is no more. */
    CHECK(threads_come_to(1), "the worker lives");
    CHECK(resident() > start + 100 * MIB, "it had given back %zu", resident());
    double began = now();
    CHECK(malloc_trim(0) == 1);
    CHECK(now() - began < 3, "%.1f s", now() - began);
    CHECK(resident() < start + 8 * MIB, "%zu resident, %zu before", resident(), start);
    CHECK((block = calloc(1, 200 * MIB)) && not_zero(block, 200 * MIB) < 0);
    for (int i = 0; i < (int)MIB; i++) CHECK(beside[i] == 5);
    free(block);
    free(beside);
}

static void spans(void)
{
    /* All of it fits into one gather, and some of what is free has to stay, so that every span is looked at. */
    enum { OBJECTS = 13000, KEPT = 20, BYTES = 3000 };
    static char *p[OBJECTS];
    pthread_t t;
    for (int i = 0; i < OBJECTS; i++) { CHECK((p[i] = malloc(BYTES))); fill(p[i], BYTES, i); }
    CHECK(!pthread_create(&t, NULL, grow_under_filter, (void *)(200 * MIB)) && !pthread_join(t, NULL));
    CHECK(threads_come_to(2), "%d threads", threads());
    size_t most = resident();
    for (int i = 0; i < OBJECTS; i++) if (i % KEPT) free(p[i]);
    CHECK(threads_come_to(1), "the worker lives");
    CHECK(resident() > most - 8 * MIB, "it had given back %zu of %zu", resident(), most);
    /* So much that a worker is wanted. */
    for (int i = 0; i < 400 && resident() > most - 15 * MIB; i++) {
        free(memset(malloc(12 * MIB), 1, 12 * MIB));
        usleep(20000);
    }
    CHECK(resident() <= most - 15 * MIB, "%zu of %zu stay", resident(), most);
    for (int i = 0; i < OBJECTS; i += KEPT) VERIFY(p[i], (size_t)BYTES, i);
}

/* From now on one call kills this thread, by itself. */
static void die_at(int call)
{
    promise_unseen();
    answer_call(call, SECCOMP_RET_KILL_THREAD);
}

static int survived;

static void *drains(void *arg) { die_at(SYS_membarrier); malloc_trim(0); survived = 1; return arg; }
static void *forks(void *arg) { die_at(SYS_membarrier); fork(); survived = 1; return arg; }
static void *makes(void *size) { die_at(SYS_clone); survived = malloc((size_t)size) != NULL; return size; }

/* Runs a thread that is killed. */
static void lose(void *(*thread)(void *), size_t arg)
{
    pthread_t t;
    survived = 0;
    CHECK(!pthread_create(&t, NULL, thread, (void *)arg) && !pthread_join(t, NULL));
    CHECK(!survived, "the call was not made");
}

static void trim_in_time(void)
{
    double start = now();
    char *p = filled(20 * MIB);
    size_t most = resident();
    free(p);
    CHECK(malloc_trim(0) == 1 && resident() < most - 15 * MIB, "%zu of %zu stay", resident(), most);
    CHECK(now() - start < 3, "%.1f s", now() - start);
    churn(1, 20000, 300, 16);
}

static void fence(void)
{
    churn(1, 5000, 300, 14);
    lose(drains, 0);
    trim_in_time();
    pid_t pid = fork();
    if (pid == 0) { trim_in_time(); _exit(0); }
    must_end_well(pid);
    /* libc may be left with a lock of its own, for forks. */
    lose(forks, 0);
    trim_in_time();
}

static void maker(void)
{
    churn(1, 5000, 300, 14);
    lose(makes, 200 * MIB);
    CHECK(threads_come_to(1), "%d threads", threads());
    trim_in_time();
    /* Not before 10 s are over. */
    for (int i = 0; i < 300 && threads() == 1; i++) {
        free(filled(20 * MIB));
        usleep(50000);
    }
    CHECK(threads() == 2, "nobody makes a worker any more");
    trim_in_time();
}

/* Whether so many bytes at most, or at least, come to be lazily free within 12 s. The program goes on meanwhile. */
static int lazy_comes_to(size_t bytes, int at_most)
{
    for (double start = now(); now() - start < 12; usleep(5000)) {
        size_t lazy = rollup("LazyFree:");
        if (at_most ? lazy <= bytes : lazy >= bytes) return 1;
        free(memset(malloc(500000), 1, 500000));
    }
    return 0;
}

static void lazy(void)
{
    free(filled(200 * MIB));
    CHECK(lazy_comes_to(150 * MIB, 0), "little is lazy");
    promise();
    answer_calls((int[]){SYS_clone, SYS_clone3, -1}, SECCOMP_RET_ERRNO | EPERM, SECCOMP_FILTER_FLAG_TSYNC);
    CHECK(threads_come_to(1), "the worker lives");
    CHECK(lazy_comes_to(8 * MIB, 1), "lazy memory stays");
    CHECK(threads() == 1, "%d threads", threads());
}

static void table(int error)
{
    int before = dup(0), after;
    CHECK(before >= 0 && !close(before));
    promise();
    answer_calls((int[]){SYS_close_range, -1}, SECCOMP_RET_ERRNO | error, SECCOMP_FILTER_FLAG_TSYNC);
    free(filled(200 * MIB));
    CHECK(threads() == 2, "no worker");
    for (int i = 0; i < 60; i++) {
        CHECK((after = dup(0)) == before && !close(after), "%d, before %d", after, before);
        usleep(10000);
    }
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (is(mode, "killed")) killed(argc - 2, argv + 2);
    else if (is(mode, "orphan")) orphan();
    else if (is(mode, "spans")) spans();
    else if (is(mode, "fence")) fence();
    else if (is(mode, "maker")) maker();
    else if (is(mode, "lazy")) lazy();
    else if (is(mode, "table")) table(atoi(argv[2]));
    else CHECK(0, "lost_threads MODE");
    return passed();
}
