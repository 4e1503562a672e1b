/* ebb_unmap, unmapping beside the program: unmap CASE
 *   once MIB     a touched range: its addresses are free at once, its memory goes soon, a new mapping there stays as it is
 *   kinds        shared memory, files, locked memory, several mappings, parts of a mapping, small ranges, errors
 *   storm N      N rounds in each of four threads, with a fork now and then; new mappings keep their content
 *   time MIB     prints how long ebb_unmap takes, divided by munmap's time, median of nine each, alternating */
#include "stats.h"
#include <pthread.h>
#include <sys/mman.h>

static __typeof__(ebb_unmap) *unmap;

static char *map_at(void *at, size_t bytes, int flags)
{
    char *p = mmap(at, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    CHECK(p != MAP_FAILED && (!at || p == at), "%zu bytes at %p", bytes, at);
    return p;
}

static char *map(size_t bytes) { return map_at(NULL, bytes, 0); }

static int is_mapped(char *p)
{
    unsigned char seen;
    return !mincore(p, PAGE, &seen);
}

static void falls_below(size_t bytes)
{
    for (int i = 0; i < 500 && resident() >= bytes; i++) usleep(10000);
    CHECK(resident() < bytes, "%zu MiB stay", resident() / MIB);
}

static void once(size_t bytes)
{
    size_t before = resident();
    char *p = map(bytes);
    memset(p, 1, bytes);
    CHECK(resident() > before + bytes / 2);
    CHECK(!unmap(p, bytes));
    CHECK(!is_mapped(p) && !is_mapped(p + bytes / 2) && !is_mapped(p + bytes - PAGE));
    char *again = map_at(p, bytes, MAP_FIXED_NOREPLACE);
    for (size_t i = 0; i < bytes; i += PAGE) CHECK(!again[i]);
    memset(again, 7, 64 * MIB < bytes ? 64 * MIB : bytes);
    falls_below(before + 64 * MIB + bytes / 8);
    usleep(300000);
    for (size_t i = 0; i < 64 * MIB && i < bytes; i++) CHECK(again[i] == 7, "byte %zu of a new mapping", i);
    CHECK(!munmap(again, bytes));
}

static void errors(void)
{
    char *p = map(32 * MIB);
    CHECK(unmap(p + 1, 32 * MIB - PAGE) == -1 && errno == EINVAL);
    CHECK(unmap(p, 0) == -1 && errno == EINVAL);
    CHECK(is_mapped(p));
    errno = 0;
    CHECK(!unmap(p, 32 * MIB - 5) && !errno && !is_mapped(p) && !is_mapped(p + 32 * MIB - PAGE));
    CHECK(!unmap(p, 32 * MIB), "munmap of nothing succeeds");
}

static void kinds(void)
{
    size_t bytes = 40 * MIB;
    errors();
    /* Several mappings, with a hole. */
    char *p = map(bytes);
    memset(p, 1, bytes);
    CHECK(!mprotect(p + 10 * MIB, PAGE, PROT_READ) && !munmap(p + 20 * MIB, MIB));
    CHECK(!unmap(p, bytes) && !is_mapped(p) && !is_mapped(p + bytes - PAGE));
    /* The middle of a mapping: the ends stay. */
    p = map(bytes + 2 * PAGE);
    memset(p, 3, bytes + 2 * PAGE);
    CHECK(!unmap(p + PAGE, bytes) && p[0] == 3 && p[bytes + PAGE] == 3 && !is_mapped(p + PAGE));
    CHECK(!munmap(p, PAGE) && !munmap(p + bytes + PAGE, PAGE));
    /* Memory that others share stays theirs. */
    int fd = memfd_create("unmap", 0);
    CHECK(fd >= 0 && !ftruncate(fd, bytes));
    char *one = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    char *other = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    CHECK(one != MAP_FAILED && other != MAP_FAILED);
    memset(one, 5, bytes);
    CHECK(!unmap(one, bytes) && !is_mapped(one));
    usleep(100000);
    for (size_t i = 0; i < bytes; i += PAGE) CHECK(other[i] == 5);
    char *file = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE, fd, 0);
    CHECK(file != MAP_FAILED);
    memset(file, 6, bytes);
    CHECK(!unmap(file, bytes) && !is_mapped(file) && other[PAGE] == 5);
    CHECK(!munmap(other, bytes) && !close(fd));
    /* Locked memory, where the limit allows it. */
    p = map(bytes);
    if (!mlock(p, bytes)) CHECK(!unmap(p, bytes) && !is_mapped(p));
    else CHECK(!munmap(p, bytes));
    p = map(PAGE);
    CHECK(!unmap(p, PAGE) && !is_mapped(p));
}

static int rounds;

static void *storm(void *seed)
{
    uint64_t s = (uintptr_t)seed;
    for (int i = 0; i < rounds; i++) {
        size_t bytes = (16 + rnd(&s) % 80) * MIB, kept = MIB;
        char *p = map(bytes);
        for (size_t at = 0; at < bytes; at += 64 * PAGE) p[at] = 1;
        CHECK(!unmap(p, bytes));
        char *new = map(kept);
        memset(new, i, kept);
        if (i % 16 == 0) {
            pid_t child = fork();
            CHECK(child >= 0);
            if (!child) {
                char *here = map(20 * MIB);
                memset(here, 1, 20 * MIB);
                _exit(unmap(here, 20 * MIB) || is_mapped(here));
            }
            int status;
            CHECK(waitpid(child, &status, 0) == child && !status);
        }
        sched_yield();
        for (size_t at = 0; at < kept; at++) CHECK(new[at] == (char)i, "a new mapping has changed");
        CHECK(!munmap(new, kept));
    }
    return NULL;
}

static double seconds(int (*how)(void *, size_t), size_t bytes)
{
    char *p = map(bytes);
    memset(p, 1, bytes);
    double began = now();
    CHECK(!how(p, bytes));
    double took = now() - began;
    falls_below(64 * MIB);
    return took;
}

static int by_size(const void *a, const void *b)
{
    double x = *(double *)a, y = *(double *)b;
    return (x > y) - (x < y);
}

static void time_both(size_t bytes)
{
    enum { N = 9 };
    double ours[N], theirs[N];
    for (int i = 0; i < N; i++) {
        ours[i] = seconds(unmap, bytes);
        theirs[i] = seconds(munmap, bytes);
    }
    qsort(ours, N, sizeof *ours, by_size);
    qsort(theirs, N, sizeof *theirs, by_size);
    printf("ebb_unmap takes %.4f of munmap's time, %.4f to %.4f\n", ours[N / 2] / theirs[N / 2], ours[0] / theirs[N - 1],
           ours[N - 1] / theirs[0]);
}

int main(int argc, char **argv)
{
    CHECK(argc > 1);
    unmap = (__typeof__(unmap))dlsym(RTLD_DEFAULT, "ebb_unmap");
    CHECK(unmap);
    if (is(argv[1], "kinds")) kinds();
    else {
        CHECK(argc == 3);
        double n = number(argv[2]);
        if (is(argv[1], "once")) once(n * MIB);
        else if (is(argv[1], "time")) time_both(n * MIB);
        else if (is(argv[1], "storm")) {
            pthread_t threads[4];
            rounds = n;
            for (int i = 0; i < 4; i++) CHECK(!pthread_create(&threads[i], NULL, storm, (void *)(uintptr_t)(i + 1)));
            for (int i = 0; i < 4; i++) CHECK(!pthread_join(threads[i], NULL));
            falls_below(200 * MIB);
        } else CHECK(0, "no case %s", argv[1]);
    }
    return passed();
}
