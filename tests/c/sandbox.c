/* System calls that start to be refused, from the start or later:
 *   sandbox start|later SET[,SET...] [ERRNO [back]]     SET: membarrier madvise process_madvise clone mremap all
 * ERRNO is a number, 1 (EPERM) if absent; 0 lets the call do nothing and say so. `start` installs the filter and
 * executes itself; `later` works with threads first. With `back`, memory must go back nevertheless.
 *   sandbox killed CALL...      a filter kills the thread that makes one of these, by number: workers, one by one. What
 *                               waits for them does not wait for ever
 *   sandbox orphan              one kills the worker when it gives back what it has claimed: that is given back by others
 *   sandbox spans               so with pages of half-used spans, while the program goes on: no call asks for it
 *   sandbox fence               one kills a thread that drains the caches of others, and one that forks: no lock is left behind
 *   sandbox maker               one kills the thread that makes a worker: nobody waits for that worker, and others make one
 *   sandbox lazy                a worker ends after it made memory lazy, and no other can be made: the program releases that
 *   sandbox table ERRNO         a worker cannot leave the program's descriptors: it opens nothing there */
#include "check.h"
#include <dirent.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static int wants(const char *sets, const char *name)
{
    size_t n = strlen(name);
    for (const char *s = sets; s; s = strchr(s, ',') ? strchr(s, ',') + 1 : NULL)
        if ((!strncmp(s, name, n) && (s[n] == ',' || !s[n])) || !strncmp(s, "all", 3)) return 1;
    return 0;
}

static void refuse(const char *sets, int error)
{
    static const struct { const char *name; int nr; } calls[] = {
        {"membarrier", SYS_membarrier}, {"madvise", SYS_madvise},
        {"process_madvise", SYS_process_madvise}, {"clone", SYS_clone}, {"clone", SYS_clone3},
        {"mremap", SYS_mremap}, {"close_range", SYS_close_range} };
    struct sock_filter f[40];
    int n = 0;
    f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++)
        if (wants(sets, calls[i].name)) {
            f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i].nr, 0, 1);
            f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error);
        }
    CHECK(n > 1, "nothing to refuse in %s", sets);
    f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog prog = { n, f };
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_TSYNC, &prog) == 0);
}

static int rest_us = 1200000;

/* Small and large objects, peaks that fall, rests in which workers would act. */
static void work(int seed)
{
    churn(seed, 30000, 500, 15);
    for (int r = 0; r < 3; r++) {
        size_t n = 100 * MIB;
        char *p = malloc(n);
        CHECK(p);
        memset(p, 7, n);
        CHECK((p = realloc(p, 2 * n)) && p[n - 1] == 7);
        CHECK((p = realloc(p, n / 2)) && p[n / 2 - 1] == 7);
        free(p);
        CHECK((p = calloc(1, n)) && not_zero(p, n) < 0);
        free(p);
        usleep(r == 1 ? rest_us : 10000);
        churn(seed + r, 20000, 300, 16);
    }
}

static void *thread(void *arg) { churn((uintptr_t)arg, 60000, 300, 14); return NULL; }

/* A program at its work gets rid of what it freed, whoever does it; `start`: resident before it allocated. */
static void gives_back(size_t start)
{
    char *p = malloc(200 * MIB);
    memset(p, 7, 200 * MIB);
    free(p);
    for (int i = 0; i < 400 && resident() > start + 24 * MIB; i++) {
        free(memset(malloc(500000), 1, 500000));
        usleep(20000);
    }
    CHECK(resident() <= start + 24 * MIB, "%zu resident, %zu before", resident(), start);
    CHECK((p = calloc(1, 100 * MIB)) && not_zero(p, 100 * MIB) < 0);
    free(p);
}

/* What was given back reads zero, or it was not. */
static void comes_back_zero(void)
{
    static const size_t sizes[] = {300000, 3 * MIB, 100 * MIB};
    for (int i = 0; i < 3; i++) {
        char *p = malloc(sizes[i]);
        CHECK(p);
        free(memset(p, 7, sizes[i]));
        malloc_trim(0);
        CHECK((p = calloc(1, sizes[i])) && not_zero(p, sizes[i]) < 0, "%zu bytes", sizes[i]);
        free(p);
    }
}

static void killed(int calls, char **numbers)
{
    enum { OBJECTS = 10000, BYTES = 8000 };
    static void *p[OBJECTS];
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    for (int call = 0; call < calls; call++) {
        struct sock_filter f[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, atoi(numbers[call]), 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_THREAD), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
        struct sock_fprog prog = { sizeof f / sizeof *f, f };
        CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog) == 0);
    }
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

/* What a filter needs. By number: after the function no worker is made for a moment. */
static void promise(void) { CHECK(syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0); }

/* The first worker is made by this thread, and under its filter. */
static void *grow_under_filter(void *size)
{
    struct sock_filter f[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_madvise, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[3])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, MADV_DONTNEED, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_THREAD), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
    struct sock_fprog prog = { sizeof f / sizeof *f, f };
    promise();
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog) == 0);
    return malloc((size_t)size);
}

static int threads(void)
{
    int n = 0;
    DIR *dir = opendir("/proc/self/task");
    CHECK(dir);
    for (struct dirent *e; (e = readdir(dir));) n += e->d_name[0] != '.';
    closedir(dir);
    return n;
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
    struct sock_filter f[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_THREAD), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
    struct sock_fprog prog = { sizeof f / sizeof *f, f };
    promise();
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog) == 0);
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
    char *p = malloc(20 * MIB);
    memset(p, 3, 20 * MIB);
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
    int status;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid && status == 0, "status %x", status);
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
        free(memset(malloc(20 * MIB), 3, 20 * MIB));
        usleep(50000);
    }
    CHECK(threads() == 2, "nobody makes a worker any more");
    trim_in_time();
}

/* Whether so many bytes at most, or at least, come to be lazily free within 12 s. The program goes on meanwhile. */
static int lazy_comes_to(size_t bytes, int at_most)
{
    for (double start = now(); now() - start < 12; usleep(5000)) {
        size_t lazy = 0;
        char line[200];
        FILE *f = fopen("/proc/self/smaps_rollup", "r");
        CHECK(f);
        while (fgets(line, sizeof line, f)) if (sscanf(line, "LazyFree: %zu", &lazy) == 1) lazy <<= 10;
        fclose(f);
        if (at_most ? lazy <= bytes : lazy >= bytes) return 1;
        free(memset(malloc(500000), 1, 500000));
    }
    return 0;
}

static void lazy(void)
{
    free(memset(malloc(200 * MIB), 3, 200 * MIB));
    CHECK(lazy_comes_to(150 * MIB, 0), "little is lazy");
    refuse("clone", EPERM);
    CHECK(threads_come_to(1), "the worker lives");
    CHECK(lazy_comes_to(8 * MIB, 1), "lazy memory stays");
    CHECK(threads() == 1, "%d threads", threads());
}

static void table(int error)
{
    int before = dup(0), after;
    CHECK(before >= 0 && !close(before));
    refuse("close_range", error);
    free(memset(malloc(200 * MIB), 3, 200 * MIB));
    CHECK(threads() == 2, "no worker");
    for (int i = 0; i < 60; i++) {
        CHECK((after = dup(0)) == before && !close(after), "%d, before %d", after, before);
        usleep(10000);
    }
}

int main(int argc, char **argv)
{
    if (argc > 2 && !strcmp(argv[1], "table")) {
        table(atoi(argv[2]));
        return passed();
    }
    if (argc > 1 && !strcmp(argv[1], "spans")) {
        spans();
        return passed();
    }
    if (argc > 1 && !strcmp(argv[1], "fence")) {
        fence();
        return passed();
    }
    if (argc > 1 && !strcmp(argv[1], "maker")) {
        maker();
        return passed();
    }
    if (argc > 1 && !strcmp(argv[1], "lazy")) {
        lazy();
        return passed();
    }
    if (argc > 1 && !strcmp(argv[1], "orphan")) {
        orphan();
        return passed();
    }
    if (argc > 2 && !strcmp(argv[1], "killed")) {
        killed(argc - 2, argv + 2);
        return passed();
    }
    CHECK(argc >= 3 && argc <= 5, "sandbox start|later|inside SETS [ERRNO [back]]");
    int error = argc > 3 ? atoi(argv[3]) : EPERM;
    size_t start = resident();
    if (argc > 4) rest_us = 200000;
    if (!strcmp(argv[1], "start")) {
        refuse(argv[2], error);
        argv[1] = "inside";
        execv("/proc/self/exe", argv);
        CHECK(0, "exec");
    }
    if (!strcmp(argv[1], "later")) {
        pthread_t t[4];
        for (int i = 0; i < 4; i++) CHECK(!pthread_create(&t[i], NULL, thread, (void *)(intptr_t)i));
        work(1);
        refuse(argv[2], error);
        for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    }
    work(2);
    if (argc > 4) gives_back(start);
    comes_back_zero();
    return passed();
}
