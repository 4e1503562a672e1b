/* Memory that is short: pressure MODE
 *   grow     garbage between live objects, then large blocks: fits into 256 MiB only if the garbage goes in time
 *   blocks   large blocks that are freed, then objects: the same the other way round
 *   fork     a forked child near the limit, whose huge pages are its parent's: no call takes long
 *   reclone  the same after a raw clone: the child has given its heap up
 *   watch    a free block is kept (window of a minute) until FIFO says that memory is short
 *   stay     the same, and nothing says so
 *   limit N  free memory, cached objects and empty pages together stay below N MiB
 *   idle     a program with nothing to give has one thread, and none stays behind
 *   end      holds memory to give and ends: is its end late? */
#include "check.h"
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

struct stats { uint64_t version, live, large, cached, in_spans, dirty, lazy, pending, held, metadata, opened, released,
    refaulted, worker_ns, longest_stall_ns, lazied, lazy_zones, reused, unused, rss, rss_without_lazy, fallovers, locks[4], pressure_events, pressure_state, limit_left, limit; };

static struct stats stats(void)
{
    static int (*get)(struct stats *, size_t);
    struct stats s = {0};
    if (!get) get = (int (*)(struct stats *, size_t))dlsym(RTLD_DEFAULT, "ebb_stats");
    if (get) get(&s, sizeof s);
    return s;
}

static int threads(void)
{
    int count = 0;
    DIR *dir = opendir("/proc/self/task");
    for (struct dirent *e; (e = readdir(dir));) count += e->d_name[0] != '.';
    closedir(dir);
    return count;
}

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
    printf("longest call %.1f ms\n", longest * 1e3);
}

static void blocks(void)
{
    enum { COUNT = 12 };
    char *block[COUNT];
    for (int i = 0; i < COUNT; i++) { CHECK((block[i] = malloc(15 * MIB))); memset(block[i], 1, 15 * MIB); }
    for (int i = 0; i < COUNT; i++) free(block[i]);
    /* Twice as large: none fits where those were, but all of it is dirty. */
    for (int i = 0; i < 3; i++) {
        char *large = malloc(72 * MIB);
        CHECK(large);
        memset(large, 2, 72 * MIB);
    }
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
    for (int i = 0; i < 160; i++) { CHECK((block[i] = malloc(MIB))); memset(block[i], 1, MIB); }
    for (int i = 0; i < 160; i += 2) free(block[i]);
    pid_t pid = raw ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
    CHECK(pid >= 0);
    if (!pid) _exit(child_near_limit());
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", status);
}

static double keep_until_told(int told)
{
    char *block = malloc(64 * MIB);
    memset(block, 1, 64 * MIB);
    free(block);
    usleep(300000);
    CHECK(resident() > 64 * MIB, "%zu resident: given back early", resident());
    double t = now();
    if (told) {
        int fd = open(getenv("MEMORY_PRESSURE_WATCH"), O_RDWR);
        CHECK(fd >= 0 && write(fd, "x", 1) == 1);
    }
    while (resident() > 32 * MIB && now() - t < 2) usleep(1000);
    return now() - t;
}

int main(int argc, char **argv)
{
    const char *mode = argv[1];
    if (!strcmp(mode, "grow")) {
        garbage(150 * MIB);
        grow(200 * MIB);
        printf("events %lu\n", stats().pressure_events);
    } else if (!strcmp(mode, "blocks")) {
        blocks();
    } else if (!strcmp(mode, "fork") || !strcmp(mode, "reclone")) {
        forked(mode[0] == 'r');
    } else if (!strcmp(mode, "watch")) {
        double took = keep_until_told(1);
        printf("%.1f ms after the event\n", took * 1e3);
        CHECK(took < 1.0, "%.3f s", took);
        CHECK(stats().pressure_state == 2 && stats().pressure_events > 0);
        /* Nothing is kept now. */
        char *block = malloc(64 * MIB);
        memset(block, 1, 64 * MIB);
        double t = now();
        free(block);
        while (resident() > 32 * MIB && now() - t < 2) usleep(1000);
        CHECK(now() - t < 0.5, "%.3f s", now() - t);
    } else if (!strcmp(mode, "stay")) {
        CHECK(keep_until_told(0) > 1.9);
    } else if (!strcmp(mode, "limit")) {
        /* A soft bound: what this loop frees itself may be on top. */
        size_t most = atol(argv[2]) * MIB + MIB;
        garbage(100 * MIB);
        char *block = malloc(100 * MIB);
        memset(block, 1, 100 * MIB);
        free(block);
        uint64_t kept = 0;
        struct stats last = {0};
        for (int i = 0; i < 300; i++) {
            usleep(10000);
            free(malloc(300 * KIB));
            last = stats();
            kept = last.dirty + last.lazy + last.cached;
            if (kept <= most && resident() < most + 60 * MIB) break;
        }
        CHECK(kept <= most, "kept: %zu dirty, %zu lazy, %zu cached", (size_t)last.dirty, (size_t)last.lazy, (size_t)last.cached);
        CHECK(resident() < most + 60 * MIB, "%zu resident", resident());
    } else if (!strcmp(mode, "idle")) {
        CHECK(threads() == 1);
        char *block = malloc(64 * MIB);
        memset(block, 1, 64 * MIB);
        free(block);
        CHECK(threads() == 2, "%d", threads());
        int waited = 0;
        while (threads() > 1 && waited++ < 150) usleep(100000);
        CHECK(threads() == 1, "%d threads after %.1f s", threads(), waited / 10.0);
    } else if (!strcmp(mode, "end")) {
        char *block = malloc(64 * MIB);
        memset(block, 1, 64 * MIB);
        free(block);
        usleep(200000);
    } else {
        CHECK(0, "no such mode");
    }
    return passed();
}
