/* Tests per-CPU data through the installed header: areas TOPIC. The misuse topics print the bad handle on stdout first;
 * the library must end the program. */
#include "check.h"
#include "filter.h"
#include <ebbtide.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>

static void arguments(void)
{
    static const size_t bad[][2] = {{0, 8}, {262145, 8}, {8, 0}, {8, 3}, {8, 8192}, {SIZE_MAX, 8}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        errno = 0;
        CHECK(!ebb_percpu_alloc(bad[i][0], bad[i][1]) && errno == EINVAL, "case %zu", i);
    }
    errno = 0;
    for (size_t align = 1; align <= 4096; align *= 2)
        for (size_t size = 1; size <= 262144; size = size * 3 + 1) {
            ebb_percpu *area = ebb_percpu_alloc(size, align);
            CHECK(area, "%zu %zu", size, align);
            for (unsigned cpu = 0; cpu < ebb_percpu_cpus(); cpu++) {
                unsigned char *copy = ebb_percpu_ptr(area, cpu);
                CHECK((uintptr_t)copy % align == 0, "%zu %zu", size, align);
                CHECK(copy[0] == 0 && copy[size / 2] == 0 && copy[size - 1] == 0, "%zu %zu", size, align);
                memset(copy, 0xa5, size);
            }
            ebb_percpu_free(area);
        }
    ebb_percpu_free(NULL);
    CHECK(errno == 0);
    ebb_percpu *last = ebb_percpu_alloc(262144, 4096);
    CHECK(last);
    ebb_percpu_add_u64(last, 262144 - 8, 3);
    CHECK(ebb_percpu_sum_u64(last, 262144 - 8) == 3 && ebb_percpu_sum_u64(last, 0) == 0);
    ebb_percpu_free(last);
    CHECK(errno == 0);
}

static void figures(void)
{
    struct ebb_percpu_stats stats, before;
    errno = 0;
    CHECK(ebb_percpu_stats(NULL, sizeof stats) == -1 && errno == EINVAL);
    CHECK(ebb_percpu_stats(&stats, 7) == -1 && errno == EINVAL);
    CHECK(ebb_percpu_stats(&before, sizeof before) == sizeof before);
    CHECK(before.chunks == 0 && before.populated_bytes == 0);
    enum { AREAS = 1000 };
    static ebb_percpu *areas[AREAS];
    size_t cpus = ebb_percpu_cpus(), size = 4096;
    for (int i = 0; i < AREAS; i++) CHECK((areas[i] = ebb_percpu_alloc(size, 64)));
    CHECK(ebb_percpu_stats(&stats, sizeof stats) == sizeof stats);
    CHECK(stats.allocated_bytes == AREAS * size * cpus, "%zu", stats.allocated_bytes);
    CHECK(stats.populated_bytes == stats.allocated_bytes && stats.chunks >= AREAS * size / 262144);
    for (int i = 0; i < AREAS; i++) if (i % 8) ebb_percpu_free(areas[i]);
    ebb_release();
    CHECK(ebb_percpu_stats(&stats, sizeof stats) == sizeof stats);
    CHECK(stats.allocated_bytes == AREAS / 8 * size * cpus);
    CHECK(stats.populated_bytes == stats.allocated_bytes, "%zu", stats.populated_bytes);
    CHECK(stats.depopulated_bytes == AREAS / 8 * 7 * size * cpus && stats.sidelined_chunks > 0);
    for (int i = 0; i < AREAS; i += 8) ebb_percpu_free(areas[i]);
    ebb_release();
    CHECK(ebb_percpu_stats(&stats, 2 * sizeof(size_t)) == 2 * sizeof(size_t));
    CHECK(stats.chunks <= cpus && stats.sidelined_chunks == 0, "%zu", stats.chunks);
}

/* The worker releases empty pages, without a call by the program. */
static void calm(void)
{
    enum { AREAS = 8000 };
    static ebb_percpu *areas[AREAS];
    struct ebb_percpu_stats peak, stats;
    for (int i = 0; i < AREAS; i++) CHECK((areas[i] = ebb_percpu_alloc(4096, 64)));
    ebb_percpu_stats(&peak, sizeof peak);
    for (int i = 0; i < AREAS; i++) {
        ebb_percpu_add_u64(areas[i], 8, i);
        if (i % 16) ebb_percpu_free(areas[i]);
    }
    for (int tries = 0; tries < 50; tries++) {
        usleep(100000);
        ebb_percpu_stats(&stats, sizeof stats);
        if (stats.populated_bytes < peak.populated_bytes / 8) break;
    }
    CHECK(stats.populated_bytes < peak.populated_bytes / 8, "%zu of %zu", stats.populated_bytes, peak.populated_bytes);
    for (int i = 0; i < AREAS; i += 16) CHECK(ebb_percpu_sum_u64(areas[i], 8) == (uint64_t)i);
}

static ebb_percpu *shared;
static int stop;

static void *count(void *arg)
{
    uint64_t *added = arg;
    while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
        ebb_percpu_add_u64(shared, 16, 1);
        ++*added;
    }
    return NULL;
}

static void forks(void)
{
    pthread_t threads[3];
    uint64_t added[3] = {0};
    CHECK((shared = ebb_percpu_alloc(24, 8)));
    for (int i = 0; i < 3; i++) pthread_create(&threads[i], NULL, count, &added[i]);
    for (int round = 0; round < 60; round++) {
        pid_t child = round % 3 == 2 ? vfork() : fork();
        CHECK(child >= 0);
        if (child == 0 && round % 3 == 2) {
            ebb_percpu_add_u64(shared, 8, 1); /* the parent's memory */
            _exit(0);
        }
        if (child == 0) {
            uint64_t before = ebb_percpu_sum_u64(shared, 16);
            ebb_percpu_add_u64(shared, 16, 5);
            CHECK(ebb_percpu_sum_u64(shared, 16) == before + 5);
            ebb_percpu *own = ebb_percpu_alloc(3000, 8);
            CHECK(own);
            ebb_percpu_add_u64(own, 8, 7);
            CHECK(ebb_percpu_sum_u64(own, 8) == 7);
            ebb_percpu_free(own);
            ebb_release();
            CHECK(ebb_percpu_sum_u64(shared, 16) == before + 5);
            ebb_percpu_free(shared);
            _exit(0);
        }
        must_end_well(child);
        ebb_percpu_free(ebb_percpu_alloc(round + 1, 1));
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    uint64_t all = 0;
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], NULL);
        all += added[i];
    }
    CHECK(ebb_percpu_sum_u64(shared, 16) == all, "%lu of %lu", ebb_percpu_sum_u64(shared, 16), all);
    CHECK(ebb_percpu_sum_u64(shared, 8) == 20);
}

/* A child by a raw clone, which runs no fork handler, of a process with busy threads. */
static void raw(void)
{
    pthread_t thread;
    uint64_t added = 0;
    ebb_percpu *old = ebb_percpu_alloc(5000, 8);
    CHECK((shared = ebb_percpu_alloc(24, 8)) && old);
    ebb_percpu_add_u64(old, 4992, 9);
    pthread_create(&thread, NULL, count, &added);
    for (int round = 0; round < 20; round++) {
        pid_t child = syscall(SYS_fork);
        if (child == 0) {
            ebb_percpu *own = ebb_percpu_alloc(5000, 8);
            CHECK(own);
            ebb_percpu_add_u64(own, 0, 1);
            CHECK(ebb_percpu_sum_u64(own, 0) == 1 && ebb_percpu_sum_u64(old, 4992) == 9);
            ebb_percpu_free(own);
            ebb_percpu_free(old);
            ebb_release();
            _exit(0);
        }
        must_end_well(child);
    }
    __atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
    pthread_join(thread, NULL);
}

/* Where the program locks its memory as it comes, a chunk is resident from the first moment. */
static void locked(void)
{
    struct ebb_percpu_stats stats;
    free(malloc(1000));
    if (mlockall(MCL_FUTURE)) { skipped("memory cannot be locked"); return; }
    size_t before = resident();
    ebb_percpu *area = ebb_percpu_alloc(100, 8);
    CHECK(area);
    size_t now = resident();
    CHECK(ebb_percpu_stats(&stats, sizeof stats) == sizeof stats);
    printf("%zu came, %zu are told of\n", now - before, stats.populated_bytes);
    CHECK(stats.populated_bytes >= 262144u * ebb_percpu_cpus() && now - before <= stats.populated_bytes + MIB);
    ebb_percpu_free(area);
    ebb_release();
    CHECK(ebb_percpu_stats(&stats, sizeof stats) == sizeof stats && stats.populated_bytes <= 262144u * (ebb_percpu_cpus() + 1));
    CHECK((area = ebb_percpu_alloc(200000, 8)));
    for (unsigned cpu = 0; cpu < ebb_percpu_cpus(); cpu++) CHECK(not_zero(ebb_percpu_ptr(area, cpu), 200000) < 0);
}

/* From now on every system call but these ends the process. A failed check writes. */
static void allow_few_calls(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    promise_unseen();
    install(code, sizeof code / sizeof *code, 0);
}

/* Calls `work` in a child that may make few calls. Returns the signal that ended the child. */
static int with_few_calls(void (*work)(void))
{
    int status;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        allow_few_calls();
        work();
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && (WIFSIGNALED(status) || !WEXITSTATUS(status)), "%#x", status);
    return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

static void wait_for_none(void) { CHECK(ebb_percpu_alloc(4 * PAGE, 8)); }

/* One area is in use. The rest of its page serves, and nothing else does. */
static void wait_for_nothing(void)
{
    ebb_percpu *area;
    size_t count = 0;
    errno = 0;
    CHECK(!ebb_percpu_alloc_nowait(0, 8) && errno == EINVAL);
    CHECK(!ebb_percpu_alloc_nowait(PAGE, 8) && errno == ENOMEM);
    for (; (area = ebb_percpu_alloc_nowait(16, 8)); count++) {
        for (unsigned cpu = 0; cpu < ebb_percpu_cpus(); cpu++)
            CHECK(not_zero(ebb_percpu_ptr(area, cpu), 16) < 0);
        ebb_percpu_add_u64(area, 8, count);
        CHECK(ebb_percpu_sum_u64(area, 8) == count && ebb_percpu_sum_u64(area, 0) == 0);
    }
    CHECK(errno == ENOMEM && count == PAGE / 16 - 1, "%zu", count);
}

static void nowait(void)
{
    CHECK(!ebb_percpu_alloc_nowait(16, 8) && errno == ENOMEM);
    free(malloc(1000));
    CHECK(!ebb_percpu_alloc_nowait(16, 8) && errno == ENOMEM);
    CHECK(ebb_percpu_alloc(16, 8));
    CHECK(with_few_calls(wait_for_nothing) == 0);
    CHECK(with_few_calls(wait_for_none) == SIGSYS);
}

enum { HANDLED = 3000 };
static ebb_percpu *handled[HANDLED];
static volatile int handled_count, refused_count;

static void handle(int signal)
{
    int saved = errno, at = handled_count;
    (void)signal;
    if (at == HANDLED) return;
    ebb_percpu *area = ebb_percpu_alloc_nowait(16, 8);
    if (area) handled[at] = area, handled_count = at + 1;
    else refused_count++;
    errno = saved;
}

/* Signals interrupt threads that allocate and free, and their handlers allocate. */
static void handlers(void)
{
    enum { AREAS = 64 };
    static ebb_percpu *pages[AREAS];
    struct itimerval often = {{0, 100}, {0, 100}};
    uint64_t random = 1, count = 0;
    signal(SIGALRM, handle);
    CHECK(!setitimer(ITIMER_REAL, &often, NULL));
    for (; handled_count < HANDLED; count++) {
        int i = rnd(&random) % AREAS;
        if (pages[i]) {
            CHECK(ebb_percpu_sum_u64(pages[i], 0) == (uint64_t)i + 1);
            ebb_percpu_free(pages[i]);
        }
        CHECK((pages[i] = ebb_percpu_alloc(8 + rnd(&random) % 120, 8)));
        CHECK(ebb_percpu_sum_u64(pages[i], 0) == 0);
        ebb_percpu_add_u64(pages[i], 0, i + 1);
    }
    CHECK(!setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL));
    for (int i = 0; i < HANDLED; i++) {
        CHECK(ebb_percpu_sum_u64(handled[i], 8) == 0 && ebb_percpu_sum_u64(handled[i], 0) == 0);
        ebb_percpu_add_u64(handled[i], 8, i + 1);
    }
    for (int i = 0; i < HANDLED; i++) {
        CHECK(ebb_percpu_sum_u64(handled[i], 8) == (uint64_t)i + 1);
        ebb_percpu_free(handled[i]);
    }
    printf("%d in handlers, %d refused, %lu others\n", HANDLED, refused_count, count);
}

int main(int argc, char **argv)
{
    const char *topic = argc > 1 ? argv[1] : "";
    if (!strcmp(topic, "arguments")) arguments();
    else if (!strcmp(topic, "figures")) figures();
    else if (!strcmp(topic, "calm")) calm();
    else if (!strcmp(topic, "forks")) forks();
    else if (!strcmp(topic, "raw")) raw();
    else if (!strcmp(topic, "locked")) locked();
    else if (!strcmp(topic, "nowait")) nowait();
    else if (!strcmp(topic, "handlers")) handlers();
    else {
        ebb_percpu *area = ebb_percpu_alloc(20, 8);
        tell(area);
        if (!strcmp(topic, "twice")) ebb_percpu_free(area), ebb_percpu_free(area);
        else if (!strcmp(topic, "late")) ebb_percpu_free(area), ebb_release(), ebb_percpu_free(area);
        else if (!strcmp(topic, "inside")) ebb_percpu_free(tell((ebb_percpu *)((char *)area + 8)));
        else if (!strcmp(topic, "heap")) ebb_percpu_free(tell(malloc(100)));
        else if (!strcmp(topic, "heap-add")) ebb_percpu_add_u64(tell(malloc(100)), 0, 1);
        else if (!strcmp(topic, "heap-ptr")) ebb_percpu_ptr(tell(malloc(100)), 0);
        else if (!strcmp(topic, "null-add")) ebb_percpu_add_u64(NULL, 0, 1);
        else if (!strcmp(topic, "offset")) ebb_percpu_add_u64(area, 16, 1);
        else if (!strcmp(topic, "offset-far")) ebb_percpu_add_u64(area, (size_t)-8, 1);
        else if (!strcmp(topic, "offset-odd")) ebb_percpu_add_u64(area, 4, 1);
        else if (!strcmp(topic, "offset-sum")) ebb_percpu_sum_u64(area, 24);
        else if (!strcmp(topic, "cpu")) ebb_percpu_ptr(area, ebb_percpu_cpus());
        else CHECK(0, "no such topic");
        puts("survived");
        return 0;
    }
    return passed();
}
