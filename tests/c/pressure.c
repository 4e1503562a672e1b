/* Memory that is short: pressure MODE
 *   grow     garbage between live objects, then large blocks: fits into 256 MiB only if the garbage goes in time
 *   blocks   large blocks that are freed, then objects: the same the other way round
 *   fork     a forked child near the limit, whose huge pages are its parent's: no call takes long
 *   reclone  the same after a raw clone: the child has given its heap up
 *   watch    a free block is kept (window of a minute) until FIFO says that memory is short
 *   stay     the same, and nothing says so
 *   limit N [M]  free memory, cached objects and empty pages together stay below N MiB, of M MiB and more
 *   idle     a program with nothing to give has one thread, and none stays behind
 *   gone     as watch; then nobody stays behind, nor wakes up meanwhile
 *   beside N M    keeps N MiB free, without a call; another process of the group then needs M MiB
 *   cache N FILE  keeps N MiB free; another process fills the group by reading FILE: an event, far from the limit
 *   level N FILE  the same where only version 1's pressure level tells of it
 *   lowered N     keeps N MiB free while the limit of the group GROUP is lowered and raised
 *   high N        the same with memory.high, and below what is used
 *   appears N     the same in a group that had no limit
 *   both N        keeps N MiB lazy and N MiB dirty, until half of what is left is between one and both
 *   stalled N     keeps N MiB free until somebody stalls for memory
 *   bumped FILE TEXT   keeps 64 MiB free until FILE in the directory FAKE says TEXT
 *   ignored FILE TEXT  and then, too
 *   overwritten   as watch, and the strings of the environment are not what they were
 *   hog M, reader FILE  the other process
 *   end      holds memory to give and ends: is its end late? */
#include "check.h"
#include "../../include/ebbtide.h"
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static struct ebb_stats stats(void)
{
    static int (*get)(struct ebb_stats *, size_t);
    struct ebb_stats s = {0};
    if (!get) get = (int (*)(struct ebb_stats *, size_t))dlsym(RTLD_DEFAULT, "ebb_stats");
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

/* Bytes in caches before the event. */
static uint64_t cached_before;

static double keep_until_told(int told)
{
    enum { COUNT = 4096 };
    static char *small[COUNT];
    char *block = malloc(64 * MIB);
    memset(block, 1, 64 * MIB);
    for (int i = 0; i < COUNT; i++) { CHECK((small[i] = malloc(256))); small[i][0] = 1; }
    free(block);
    for (int i = 0; i < COUNT; i++) free(small[i]);
    usleep(300000);
    CHECK(resident() > 64 * MIB, "%zu resident: given back early", resident());
    cached_before = stats().cached_bytes;
    double t = now();
    if (told) {
        int fd = open(getenv("MEMORY_PRESSURE_WATCH"), O_RDWR);
        CHECK(fd >= 0 && write(fd, "x", 1) == 1);
    }
    while (resident() > 32 * MIB && now() - t < 2) usleep(1000);
    return now() - t;
}

static char *start_block(size_t bytes)
{
    char *block = malloc(bytes);
    CHECK(block);
    memset(block, 1, bytes);
    return block;
}

/* So much is free, and stays: the window is a minute. */
static void keep_free(size_t bytes)
{
    free(start_block(bytes));
    usleep(300000);
    CHECK(resident() > bytes, "%zu MiB resident: given back early", resident() / MIB);
}

/* What is told of has gone after so many seconds: looks are 40 ms apart, and the machine may be busy. */
#define SOON 0.5

/* The kernel's files are never seen half written. */
static void bump(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", getenv("FAKE"), name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), "%s", path);
    close(fd);
}

/* As programs do that show what they are at in the list of processes. */
static char watched[512];
static void overwrite_environment(void)
{
    free(malloc(1));
    strcpy(watched, getenv("MEMORY_PRESSURE_WATCH"));
    for (char **e = environ; *e; e++) memset(*e, 'x', strlen(*e));
    setenv("MEMORY_PRESSURE_WATCH", watched, 1);
}

/* Seconds until less than half of it is resident, at most so many. */
static double gone_within(size_t bytes, double seconds)
{
    double t = now();
    while (resident() > bytes / 2 && now() - t < seconds) usleep(1000);
    return now() - t;
}

/* A file of the group GROUP. Nothing is allocated. */
static int group_file(const char *name, int flags)
{
    char path[512];
    CHECK(getenv("GROUP"), "GROUP is the directory of the group");
    snprintf(path, sizeof path, "%s/%s", getenv("GROUP"), name);
    return open(path, flags | O_CLOEXEC);
}

static uint64_t group_number(const char *name)
{
    char text[32] = {0};
    int fd = group_file(name, O_RDONLY);
    CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0, "%s", name);
    close(fd);
    return strtoull(text, NULL, 10);
}

static int is_v2;

static void find_version(void)
{
    int fd = group_file("memory.max", O_RDONLY);
    is_v2 = fd >= 0;
    if (is_v2) close(fd);
}

static size_t used(void) { return group_number(is_v2 ? "memory.current" : "memory.usage_in_bytes"); }

static void set_limit(const char *name, size_t bytes)
{
    char text[32];
    int fd = group_file(name, O_WRONLY), n = snprintf(text, sizeof text, "%zu", bytes);
    CHECK(fd >= 0 && write(fd, text, n) == n, "%s = %s", name, text);
    close(fd);
}

/* Events of memory.events (version 2), or how often the limit was met. */
static uint64_t hits(void)
{
    if (!is_v2) return group_number("memory.failcnt");
    char text[512] = {0};
    int fd = group_file("memory.events", O_RDONLY);
    CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
    close(fd);
    char *high = strstr(text, "high "), *most = strstr(text, "max ");
    CHECK(high && most);
    return strtoull(high + 5, NULL, 10) + strtoull(most + 4, NULL, 10);
}

/* Takes memory without malloc, 1 MiB in 2.5 ms. */
static void hog(size_t bytes)
{
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    for (size_t at = 0; at < bytes; at += MIB) { memset(p + at, 3, MIB); usleep(2500); }
}

static void reader(const char *path)
{
    static char buffer[1 << 16];
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0, "%s", path);
    for (size_t all = 0; read(fd, buffer, sizeof buffer) > 0; all += sizeof buffer)
        if (all % MIB == 0) usleep(1000);
}

/* Another process of this group. It shares no memory with this one. */
static pid_t beside(const char *mode, const char *argument)
{
    char *argv[] = {"pressure", (char *)mode, (char *)argument, NULL}, *none[] = {NULL};
    pid_t pid;
    CHECK(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, none) == 0);
    return pid;
}

static void ends_well(pid_t pid)
{
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", status);
}

static void lowered(size_t bytes, const char *name)
{
    find_version();
    size_t base = used();
    keep_free(bytes);
    set_limit(name, 4 * bytes);
    CHECK(gone_within(bytes, 0.5) >= 0.5, "given back although the limit is far");
    set_limit(name, used() + 12 * MIB);
    double took = gone_within(bytes, 2);
    printf("%.0f ms after the limit was lowered\n", took * 1e3);
    CHECK(took < 1, "%.3f s", took);
    /* Less than what was used before, and not near what is kept now: somebody may look in between. */
    usleep(100000);
    set_limit(name, base + bytes / 4 * 3);
    set_limit(name, 8 * bytes);
    usleep(100000);
    CHECK(stats().pressure_state == 1, "short of memory before anything was");
    keep_free(bytes);
    CHECK(gone_within(bytes, 0.5) >= 0.5, "given back although the limit is far again");
}

static unsigned long wakeups(void)
{
    unsigned long all = 0;
    DIR *dir = opendir("/proc/self/task");
    for (struct dirent *e; (e = readdir(dir));) {
        char path[320], line[128];
        if (e->d_name[0] == '.' || atoi(e->d_name) == getpid()) continue;
        snprintf(path, sizeof path, "/proc/self/task/%s/status", e->d_name);
        FILE *f = fopen(path, "r");
        while (f && fgets(line, sizeof line, f)) {
            unsigned long n;
            if (sscanf(line, "voluntary_ctxt_switches: %lu", &n) == 1) all += n;
        }
        if (f) fclose(f);
    }
    closedir(dir);
    return all;
}

/* The looks have ended with what there was to give, and after a while the thread. */
static void nobody_stays(void)
{
    sleep(1);
    unsigned long before = wakeups();
    sleep(2);
    unsigned long after = wakeups();
    CHECK(after - before <= 4, "%lu wake-ups with nothing to give", after - before);
    int waited = 30;
    while (threads() > 1 && waited++ < 150) usleep(100000);
    CHECK(threads() == 1, "%d threads after %.1f s", threads(), waited / 10.0);
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
    } else if (!strcmp(mode, "watch") || !strcmp(mode, "overwritten")) {
        if (mode[0] == 'o') overwrite_environment();
        double took = keep_until_told(1);
        printf("%.1f ms after the event\n", took * 1e3);
        CHECK(took < SOON, "%.3f s", took);
        CHECK(stats().pressure_state == 2 && stats().pressure_events == 1, "%lu events", stats().pressure_events);
        for (double t = now(); stats().cached_bytes > cached_before / 4 && now() - t < 2;) usleep(1000);
        CHECK(cached_before > 16 * KIB && stats().cached_bytes <= cached_before / 4, "%lu of %lu bytes cached", stats().cached_bytes, cached_before);
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
        free(start_block((argc > 3 ? atol(argv[3]) : 100) * MIB));
        uint64_t kept = 0;
        struct ebb_stats last = {0};
        for (int i = 0; i < 300; i++) {
            usleep(10000);
            free(malloc(300 * KIB));
            last = stats();
            kept = last.dirty_bytes + last.lazy_bytes + last.cached_bytes;
            if (kept <= most && resident() < most + 60 * MIB) break;
        }
        CHECK(kept <= most, "kept: %zu dirty, %zu lazy, %zu cached", (size_t)last.dirty_bytes, (size_t)last.lazy_bytes, (size_t)last.cached_bytes);
        CHECK(resident() < most + 60 * MIB, "%zu resident", resident());
    } else if (!strcmp(mode, "bumped") || !strcmp(mode, "ignored")) {
        int wanted = mode[0] == 'b';
        keep_free(64 * MIB);
        bump(argv[2], argv[3]);
        double took = gone_within(64 * MIB, wanted ? 5 : 1.5);
        printf("%.0f ms\n", took * 1e3);
        CHECK(wanted ? took < SOON : took >= 1.5, "%s: %.3f s", argv[2], took);
        if (!wanted) CHECK(stats().pressure_events == 0);
    } else if (!strcmp(mode, "idle")) {
        CHECK(threads() == 1);
        char *block = malloc(64 * MIB);
        memset(block, 1, 64 * MIB);
        free(block);
        CHECK(threads() == 2, "%d", threads());
        int waited = 0;
        while (threads() > 1 && waited++ < 150) usleep(100000);
        CHECK(threads() == 1, "%d threads after %.1f s", threads(), waited / 10.0);
    } else if (!strcmp(mode, "gone")) {
        CHECK(keep_until_told(1) < 1);
        nobody_stays();
    } else if (!strcmp(mode, "beside")) {
        size_t kept = atol(argv[2]) * MIB;
        keep_free(kept);
        ends_well(beside("hog", argv[3]));
        CHECK(resident() < kept / 2, "%zu MiB resident", resident() / MIB);
    } else if (!strcmp(mode, "cache")) {
        size_t kept = atol(argv[2]) * MIB;
        find_version();
        keep_free(kept);
        pid_t pid = beside("reader", argv[3]);
        double begin = now(), hit = 0;
        while (!hit && now() - begin < 10) {
            usleep(1000);
            /* In this order: what goes in between goes by the hit. */
            size_t there = resident();
            if (hits()) hit = now();
            CHECK(hit || there > kept, "given back before anything happened");
        }
        if (!hit) { ends_well(pid); puts("skipped: pages of files do not count here"); return passed(); }
        double took = gone_within(kept, 2);
        ends_well(pid);
        printf("%.0f ms after the limit was met\n", took * 1e3);
        CHECK(took < 1, "%.3f s", took);
        CHECK(stats().limit_left_bytes > stats().limit_bytes / 4, "%lu MiB left: not by an event", stats().limit_left_bytes / MIB);
    } else if (!strcmp(mode, "level")) {
        keep_free(atol(argv[2]) * MIB);
        pid_t pid = beside("reader", argv[3]);
        double took = gone_within(atol(argv[2]) * MIB, 10);
        ends_well(pid);
        CHECK(took < 10 && stats().pressure_state == 2, "%.3f s", took);
        CHECK(stats().limit_left_bytes > stats().limit_bytes / 4, "%lu MiB left: not by an event", stats().limit_left_bytes / MIB);
    } else if (!strcmp(mode, "lowered")) {
        find_version();
        lowered(atol(argv[2]) * MIB, is_v2 ? "memory.max" : "memory.limit_in_bytes");
    } else if (!strcmp(mode, "high")) {
        size_t kept = atol(argv[2]) * MIB;
        find_version();
        keep_free(kept);
        set_limit("memory.high", used() / 2);
        double took = gone_within(kept, 16);
        printf("%.0f ms after memory.high was lowered\n", took * 1e3);
        /* Above it the kernel makes everybody wait, those who give back too, up to 2 s at a time; seen: 2 to 8. */
        CHECK(took < 16, "%.3f s", took);
        CHECK(stats().pressure_state == 2);
    } else if (!strcmp(mode, "appears")) {
        size_t kept = atol(argv[2]) * MIB;
        find_version();
        keep_free(kept);
        CHECK(gone_within(kept, 0.5) >= 0.5, "given back without a limit");
        set_limit(is_v2 ? "memory.max" : "memory.limit_in_bytes", used() + 12 * MIB);
        double took = gone_within(kept, 4);
        printf("%.0f ms after there was a limit\n", took * 1e3);
        CHECK(took < 2, "%.3f s", took);
    } else if (!strcmp(mode, "both")) {
        size_t each = atol(argv[2]) * MIB;
        char *first = start_block(each), *second = start_block(each);
        find_version();
        free(first);
        double t = now();
        while (stats().lazy_bytes < each / 2 && now() - t < 20) usleep(10000);
        CHECK(stats().lazy_bytes > each / 2, "%lu bytes are lazy", stats().lazy_bytes);
        free(second);
        usleep(300000);
        struct ebb_stats s = stats();
        CHECK(s.lazy_bytes + s.dirty_bytes > each / 2 * 3, "%lu bytes are lazy, %lu dirty", s.lazy_bytes, s.dirty_bytes);
        set_limit(is_v2 ? "memory.max" : "memory.limit_in_bytes", used() + each / 2 * 5);
        /* What is asked for is not that all goes: it is not short. */
        size_t most = each / 4 * 5 + 12 * MIB;
        for (t = now(), s = stats(); s.lazy_bytes + s.dirty_bytes > most && now() - t < 2; s = stats()) usleep(10000);
        CHECK(s.lazy_bytes + s.dirty_bytes <= most, "%lu MiB are lazy, %lu dirty", s.lazy_bytes / MIB, s.dirty_bytes / MIB);
        CHECK(s.lazy_bytes + s.dirty_bytes > 0 && s.pressure_state != 2, "short");
    } else if (!strcmp(mode, "stalled")) {
        size_t kept = atol(argv[2]) * MIB;
        keep_free(kept);
        double took = gone_within(kept, 10);
        printf("%.0f ms until somebody had stalled\n", took * 1e3);
        CHECK(took < 10 && stats().pressure_state == 2, "%.3f s", took);
    } else if (!strcmp(mode, "hog")) {
        hog(atol(argv[2]) * MIB);
    } else if (!strcmp(mode, "reader")) {
        reader(argv[2]);
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
