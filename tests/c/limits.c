/* Work inside limits: limits CASE [argument]
 *   work MIB       churn with that much live               oom BYTES   until NULL, twice, then go on
 *   nofile N       RLIMIT_NOFILE N first, then work        mlock MIB   mlockall(current, future) first
 *   newuser        unshare(CLONE_NEWUSER) after some work  core        some work, then abort
 *   threads        as `work 64`, then threads
 *   nproc DIR      as a user who may have no thread more: memory goes back all the same, and the page of figures in
 *                  DIR says why there is no worker */
#include "stats.h"
#include <grp.h>
#include <malloc.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>

/* Holds `mib` MiB of mixed sizes, verifies all, frees all; twice, with a rest between. */
static void work(size_t mib)
{
    enum { MOST = 1 << 17 };
    static unsigned char *p[MOST];
    static unsigned n[MOST];
    for (int round = 0; round < 2; round++) {
        uint64_t s = round;
        size_t sum = 0;
        int k = 0;
        for (; sum < mib * MIB && k < MOST; k++) {
            n[k] = log_size(&s, rnd(&s) % 64 ? 13 : 21);
            CHECK((p[k] = malloc(n[k])), "%u bytes with %zu MiB live", n[k], sum / MIB);
            fill(p[k], n[k], k);
            sum += n[k];
        }
        for (int i = 0; i < k; i++) { VERIFY(p[i], n[i], i); free(p[i]); }
        usleep(50000);
    }
    churn(1, 20000, 500, 14);
}

/* Chunks of n bytes until NULL. The chunks are chained through their first word. */
static size_t until_null(size_t n, size_t most)
{
    void **head = NULL;
    size_t count = 0;
    errno = 0;
    for (; count < most; count++) {
        void **p = malloc(n);
        if (!p) break;
        memset(p, 1, n < 64 ? n : 64);
        *p = head;
        head = p;
    }
    CHECK(count == most || errno == ENOMEM);
    while (head) { void **next = *head; free(head); head = next; }
    return count;
}

static void oom(size_t limit)
{
    size_t sizes[] = { MIB, 40, 3000, 100 * KIB, 16 * MIB };
    for (int i = 0; i < 5; i++) {
        size_t a = until_null(sizes[i], SIZE_MAX), b = until_null(sizes[i], SIZE_MAX);
        CHECK(a * sizes[i] > limit / 4, "only %zu objects of %zu", a, sizes[i]);
        CHECK(b >= a - a / 5, "%zu objects of %zu at first, %zu after", a, sizes[i], b);
    }
    errno = 0;
    CHECK(!calloc(1, limit) && errno == ENOMEM);
    CHECK(!realloc(NULL, limit) && errno == ENOMEM);
    churn(1, 5000, 300, 14);
}

static void *thread(void *arg)
{
    churn((uintptr_t)arg, 20000, 300, 14);
    return NULL;
}

/* A word of this process's statistics page, by its place there. */
#define FIGURE(name) (1 + offsetof(struct ebb_stats, name) / 8)
static uint64_t figure(const char *dir, int place)
{
    static int fd = -1;
    char path[300];
    uint64_t word = 0;
    snprintf(path, sizeof path, "%s/%d.ebb", dir, getpid());
    if (fd < 0) fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && pread(fd, &word, 8, place * 8) == 8, "%s", path);
    return word;
}

static void nproc(const char *dir)
{
    enum { WORKER_NS = FIGURE(worker_ns), REFUSED = FIGURE(refused), WORKERS = 6 };
    struct rlimit one = { 1, 1 };
    pthread_t t;
    churn(1, 5000, 300, 16);
    figure(dir, REFUSED);
    CHECK(setrlimit(RLIMIT_NPROC, &one) == 0);
    /* Root is above the limit; nobody else has this number. */
    uid_t user = 70000 + getpid();
    if (geteuid() == 0 && (setgroups(0, NULL) || setresgid(user, user, user) || setresuid(user, user, user))) {
        skipped("no other user can be had");
        return;
    }
    if (pthread_create(&t, NULL, thread, NULL) != EAGAIN) { skipped("the limit is not kept here"); return; }
    size_t start = resident();
    for (int round = 0; round < 2; round++) work_until_back(start);
    /* Parts of huge pages, without anybody who could look at them. */
    static void *p[20000];
    for (int i = 0; i < 20000; i++) { CHECK((p[i] = malloc(8000))); fill(p[i], 8000, i); }
    for (int i = 0; i < 20000; i++) if (i % 11) free(p[i]);
    size_t most = resident();
    CHECK(malloc_trim(0) == 1 && resident() < most - 80 * MIB, "%zu of %zu stay", resident(), most);
    for (int i = 0; i < 20000; i += 11) { VERIFY(p[i], 8000, i); free(p[i]); }
    usleep(600000);
    churn(1, 20000, 500, 16);
    CHECK(figure(dir, REFUSED) >> WORKERS & 1 && figure(dir, WORKER_NS) == 0);
}

int main(int argc, char **argv)
{
    const char *c = argc > 1 ? argv[1] : "";
    size_t value = argc > 2 ? strtoull(argv[2], NULL, 10) : 0;
    if (!strcmp(c, "work")) work(value);
    else if (!strcmp(c, "oom")) oom(value);
    else if (!strcmp(c, "nofile")) {
        struct rlimit r = { value, value };
        CHECK(setrlimit(RLIMIT_NOFILE, &r) == 0);
        work(150);
    } else if (!strcmp(c, "mlock")) {
        CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
        work(value);
    } else if (!strcmp(c, "newuser")) {
        churn(1, 5000, 300, 16);
        malloc_trim(0);
        CHECK(unshare(CLONE_NEWUSER) == 0, "a thread exists, or namespaces are off");
        churn(1, 5000, 300, 16);
    } else if (!strcmp(c, "nproc")) {
        nproc(argc > 2 ? argv[2] : ".");
    } else if (!strcmp(c, "core")) {
        churn(1, 5000, 300, 16);
        abort();
    } else if (!strcmp(c, "threads")) {
        pthread_t t[8];
        work(64);
        for (int i = 0; i < 8; i++) CHECK(!pthread_create(&t[i], NULL, thread, (void *)(intptr_t)i));
        for (int i = 0; i < 8; i++) pthread_join(t[i], NULL);
    } else CHECK(0, "limits CASE");
    return passed();
}
