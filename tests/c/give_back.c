/* Memory that comes back without a call: give_back MODE
 *   large    one block of 512 MiB: free() only marks, then RSS falls while the program sleeps
 *   objects  4 to 64 KiB, 10 of 11 freed: RSS falls to what lives, survivors keep their content
 *   small    64 to 512 B, 10 of 11 freed: RSS falls to the pages with a live byte
 *   loop     temporaries of 128 MiB: no page faults from the second round on, then all comes back
 *   slack    what a large block has behind it to grow into does not keep memory
 *   mlock    memory that the program locks as it comes goes back too, what was never touched as well
 *   setuid   with a worker alive, setuid() does not hang
 *   fork     children of a parent whose workers are at it find everything whole
 *   stack    a thread with the smallest stack releases in place
 *   last     main ends by pthread_exit beside a worker: its output is not lost, its end not late
 *   threads  the worker has a name, sleeps without a timer, and is gone some seconds after the last work
 *   polls    nor does it stay for the little that a program at its polling leaves behind
 *   early    the worker that was made in advance sees what is free in half-used spans, too, before the window is over
 *   awaits   and is gone when nothing came of it, however long the window is
 *   busy     caches of a program that goes on with a little of everything do not keep what it once needed
 *   cpu      with one CPU, and with CPUs that change meanwhile
 *   clone    as `fork`, children that skip the handlers
 *   split    the huge pages behind depopulated spans are split, so that the system gets the memory
 *   khuge    khugepaged leaves depopulated spans alone (as root, with a fast scan)
 *   release  ebb_release() gives back every page of freed objects, and nothing else
 *   shared   what ebb_release() says agrees with what the system got, while a child shares the huge pages and after; a
 *            file that tells what the memory cgroup uses may follow
 *   held     huge pages shared with a forked child are held, and go back when the child is gone; children
 *            that skip the fork handlers are not harmed by it */
#include "check.h"
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static size_t rss(void)
{
    static int fd = -1;
    char text[128];
    if (fd < 0) fd = open("/proc/self/statm", O_RDONLY);
    ssize_t n = pread(fd, text, sizeof text - 1, 0);
    text[n > 0 ? n : 0] = 0;
    return strtoul(strchr(text, ' '), NULL, 10) * PAGE;
}

/* Sleeps until RSS is below the limit; seconds it took. */
static double wait_below(size_t limit, double most)
{
    for (int i = 0; i < most * 100; i++) {
        if (rss() < limit) return i / 100.0;
        usleep(10000);
    }
    CHECK(0, "RSS %zu is not below %zu after %.1f s", rss(), limit, most);
    return most;
}

static long faults(void)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return use.ru_minflt;
}

/* How many workers live, and how often they have slept. */
static int workers_slept(long *slept)
{
    int count = 0;
    *slept = 0;
    DIR *dir = opendir("/proc/self/task");
    for (struct dirent *e; (e = readdir(dir));) {
        char path[300], name[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", e->d_name);
        int fd = open(path, O_RDONLY);
        if (fd < 0) continue;
        int ours = read(fd, name, 31) > 0 && !strncmp(name, "ebbtide/", 8);
        close(fd);
        if (!ours) continue;
        count++;
        char text[4096] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/status", e->d_name);
        if ((fd = open(path, O_RDONLY)) < 0) continue;
        if (read(fd, text, sizeof text - 1) > 0) {
            char *at = strstr(text, "\nvoluntary_ctxt_switches:");
            if (at) *slept += atol(at + 25);
        }
        close(fd);
    }
    closedir(dir);
    return count;
}

static int workers(void) { long slept; return workers_slept(&slept); }

/* A figure of ebb_stats by its place (include/ebbtide.h). */
static uint64_t figure(int place)
{
    static int (*stats)(uint64_t *, size_t);
    uint64_t all[15] = {0};
    if (!stats) stats = (int (*)(uint64_t *, size_t))dlsym(RTLD_DEFAULT, "ebb_stats");
    CHECK(stats && stats(all, sizeof all) == sizeof all);
    return all[place];
}
enum { CACHED = 3, DIRTY = 5, UNSPLIT = 8 };

/* ebb_release(). */
static size_t release(void)
{
    size_t (*all)(void) = (size_t (*)(void))dlsym(RTLD_DEFAULT, "ebb_release");
    CHECK(all);
    return all();
}

/* A number in a file. */
static size_t number_in(const char *path)
{
    char text[64] = "";
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0, "%s", path);
    close(fd);
    return strtoull(text, NULL, 10);
}

/* Whether the page at p is part of a huge page, by the kernel's own flags; -1: not to be had. */
static int in_huge_page(const void *p)
{
    enum { THP = 22 };
    static int map = -1, flags = -1;
    uint64_t entry, flag;
    if (map < 0) map = open("/proc/self/pagemap", O_RDONLY);
    if (flags < 0) flags = open("/proc/kpageflags", O_RDONLY);
    if (pread(map, &entry, 8, (uintptr_t)p / PAGE * 8) != 8 || !(entry >> 63)) return -1;
    uint64_t frame = entry & ((1ull << 55) - 1);
    if (!frame || pread(flags, &flag, 8, frame * 8) != 8) return -1;
    return flag >> THP & 1;
}

/* 32 MiB of which one page in each 2 MiB is there. */
static char *sparse(void)
{
    char *p = mmap(NULL, 34 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    p = (char *)(((uintptr_t)p + 2 * MIB - 1) & ~(2 * MIB - 1));
    madvise(p, 32 * MIB, MADV_NOHUGEPAGE);
    for (int i = 0; i < 16; i++) p[i * 2 * MIB] = 1;
    madvise(p, 32 * MIB, MADV_HUGEPAGE);
    return p;
}

static void pin(int first, int count)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    for (int i = first; i < first + count; i++) CPU_SET(i, &set);
    if (sched_setaffinity(0, sizeof set, &set)) puts("skipped: no such CPU");
}

static void must_end_well(pid_t pid)
{
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %x", status);
}

enum { MAX_OBJECTS = 4 << 20 };
static unsigned char **objects;
static unsigned *sizes;
static size_t count;
/* Where they are, and which pages from there on have a live byte. */
static uintptr_t base, top;
static unsigned char live[1 << 21];

/* Fills about `total` bytes, frees 10 of 11 at random; bytes of pages with a live byte. */
static size_t fill_and_free(size_t low, size_t high, size_t total)
{
    objects = mmap(NULL, MAX_OBJECTS * sizeof *objects, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sizes = mmap(NULL, MAX_OBJECTS * sizeof *sizes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    uint64_t s = 7;
    for (size_t all = 0; all < total && count < MAX_OBJECTS; count++) {
        sizes[count] = low + rnd(&s) % (high - low);
        CHECK((objects[count] = malloc(sizes[count])));
        fill(objects[count], sizes[count], count);
        all += sizes[count];
    }
    size_t pages = 0;
    base = UINTPTR_MAX;
    for (size_t i = 0; i < count; i++) {
        if ((uintptr_t)objects[i] < base) base = (uintptr_t)objects[i];
        if ((uintptr_t)objects[i] > top) top = (uintptr_t)objects[i];
    }
    base &= ~(uintptr_t)(PAGE - 1);
    for (size_t i = 0; i < count; i++) {
        if (rnd(&s) % 11) { free(objects[i]); objects[i] = NULL; continue; }
        uintptr_t a = (uintptr_t)objects[i] - base;
        for (size_t p = a / PAGE; p <= (a + sizes[i] - 1) / PAGE; p++) {
            /* Another zone is far away: its pages are counted once an object. */
            if (p >= sizeof live) pages++;
            else pages += !live[p], live[p] = 1;
        }
    }
    return pages * PAGE;
}

static void verify(void)
{
    for (size_t i = 0; i < count; i++) if (objects[i]) VERIFY(objects[i], sizes[i], i);
}

/* Resident pages among the objects that have no live byte. One zone only. */
static size_t left_behind(void)
{
    static unsigned char there[1 << 21];
    size_t pages = (top - base) / PAGE, left = 0;
    CHECK(pages < sizeof there && mincore((void *)base, pages * PAGE, there) == 0);
    for (size_t i = 0; i < pages; i++) left += there[i] & 1 && !live[i];
    return left;
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

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    size_t start = rss();
    if (!strcmp(mode, "large")) {
        char *p = malloc(512 * MIB);
        memset(p, 1, 512 * MIB);
        free(p);
        printf("back after %.2f s\n", wait_below(start + 16 * MIB, 6));
    } else if (!strcmp(mode, "objects") || !strcmp(mode, "small")) {
        int small = *mode == 's';
        size_t live = small ? fill_and_free(64, 512, 192 * MIB) : fill_and_free(4096, 65536, 384 * MIB);
        size_t base = start + count * (sizeof *objects + sizeof *sizes) + (2 << 20);
        printf("back after %.2f s\n", wait_below(base + live + live / (small ? 20 : 6) + 12 * MIB, 8));
        verify();
        usleep(300000);
        verify();
        churn(3, 20000, 500, 16);
        verify();
    } else if (!strcmp(mode, "loop")) {
        long last = 0;
        for (int round = 0; round < 8; round++) {
            long before = faults();
            char *p = malloc(128 * MIB);
            for (size_t i = 0; i < 128 * MIB; i += PAGE) p[i] = round;
            free(p);
            last = faults() - before;
        }
        CHECK(last < 100, "%ld page faults in the last round", last);
        wait_below(start + 16 * MIB, 6);
    } else if (!strcmp(mode, "slack")) {
        free(memset(malloc(512 * MIB), 1, 512 * MIB));
        char *p = malloc(128 * MIB);
        wait_below(start + (128 + 16) * MIB, 6);
        CHECK((p = realloc(p, 400 * MIB)));
        memset(p, 1, 400 * MIB);
        CHECK((p = realloc(p, 20 * MIB)));
        wait_below(start + (20 + 16) * MIB, 6);
        free(p);
        wait_below(start + 16 * MIB, 6);
    } else if (!strcmp(mode, "mlock")) {
        free(malloc(100000));
        CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
        start = rss();
        for (int round = 0; round < 2; round++) {
            unsigned char *p = malloc(200 * MIB);
            memset(p, 1, 100 * MIB);
            free(p);
            wait_below(start + 24 * MIB, 6);
            CHECK((p = calloc(1, 64 * MIB)) && not_zero(p, 64 * MIB) < 0);
            free(p);
        }
        CHECK(figure(DIRTY) < 80 * MIB);
    } else if (!strcmp(mode, "setuid")) {
        free(memset(malloc(64 * MIB), 1, 64 * MIB));
        usleep(100000);
        if (!workers()) puts("skipped: no worker");
        alarm(10);
        CHECK(setuid(getuid()) == 0);
    } else if (!strcmp(mode, "cpu")) {
        for (int round = 0; round < 3; round++) {
            /* One; another one while a worker that knew the first is awake; two. */
            pin(round == 1, 1 + (round == 2));
            free(memset(malloc(256 * MIB), 1, 256 * MIB));
            usleep(900000);
            pin(round == 0, 1 + (round == 1));
            wait_below(start + 16 * MIB, 6);
        }
    } else if (!strcmp(mode, "split")) {
        char *control = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        control = (char *)(((uintptr_t)control + 2 * MIB - 1) & ~(2 * MIB - 1));
        madvise(control, 2 * MIB, MADV_HUGEPAGE);
        memset(control, 1, 2 * MIB);
        madvise(control, MIB, MADV_DONTNEED);
        if (in_huge_page(control + MIB) != 1) { puts("skipped: no huge pages, or no way to see them"); return 0; }
        size_t live = fill_and_free(4096, 65536, 384 * MIB);
        wait_below(start + live + live / 6 + 24 * MIB, 8);
        size_t huge = 0, pages = 0;
        for (size_t i = 0; i < count; i++)
            for (size_t at = 0; objects[i] && at < sizes[i]; at += PAGE, pages++) huge += in_huge_page(objects[i] + at) == 1;
        CHECK(pages > 5000 && huge < pages / 50, "%zu of %zu pages are in huge pages", huge, pages);
        verify();
    } else if (!strcmp(mode, "khuge")) {
        size_t live = fill_and_free(4096, 65536, 256 * MIB);
        wait_below(start + live + live / 6 + 24 * MIB, 8);
        size_t low = rss();
        /* It has been here when it has filled what is like that and not guarded: twice, to be sure. */
        for (int round = 0; round < 2; round++) {
            char *control = sparse();
            int i = 0;
            while (i < 1500 && in_huge_page(control + 30 * MIB) != 1) usleep(10000), i++;
            if (i == 1500) { puts("skipped: khugepaged does not come here"); return 0; }
        }
        CHECK(rss() < low + 64 * MIB + low / 20, "%zu after khugepaged, %zu before", rss(), low);
        verify();
    } else if (!strcmp(mode, "fork") || !strcmp(mode, "clone")) {
        fill_and_free(4096, 65536, 128 * MIB);
        for (int round = 0; round < 40; round++) {
            free(memset(malloc(96 * MIB), round, 96 * MIB));
            usleep(round * 997 % 40000);
            pid_t pid = *mode == 'f' ? fork() : syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
            CHECK(pid >= 0);
            if (pid == 0) {
                verify();
                unsigned char *z = calloc(1, 64 * MIB);
                for (size_t i = 0; i < 64 * MIB; i += 512) CHECK(z[i] == 0, "dirty at %zu", i);
                free(z);
                churn(round, 3000, 300, 20);
                verify();
                _exit(0);
            }
            churn(round, 2000, 200, 18);
            must_end_well(pid);
        }
        verify();
    } else if (!strcmp(mode, "stack")) {
        pthread_attr_t attributes;
        pthread_t thread;
        pthread_attr_init(&attributes);
        CHECK(pthread_attr_setstacksize(&attributes, 16384) == 0);
        CHECK(pthread_create(&thread, &attributes, small_stack, NULL) == 0);
        pthread_join(thread, NULL);
    } else if (!strcmp(mode, "last")) {
        free(memset(malloc(64 * MIB), 1, 64 * MIB));
        printf("ok\n");
        alarm(5);
        pthread_exit(NULL);
    } else if (!strcmp(mode, "threads")) {
        void *some[30];
        for (int i = 0; i < 30; i++) CHECK((some[i] = malloc(MIB)));
        CHECK(workers() == 0, "a small program has a worker");
        for (int i = 0; i < 6; i++) free(some[i]);
        CHECK(workers() == 0, "a worker for 6 MiB");
        for (int i = 6; i < 30; i++) free(some[i]);
        /* It is made when much is asked for, so that free() need not. */
        void *much = malloc(64 * MIB);
        usleep(200000);
        int most = workers();
        if (!most) { puts("skipped: no worker"); return 0; }
        free(memset(much, 1, 64 * MIB));
        usleep(2500000);
        long before, after;
        CHECK(workers_slept(&before) && usleep(2000000) == 0 && workers_slept(&after));
        /* One look a second at what the main thread may do. */
        CHECK(after - before <= 3, "%ld wake-ups of an idle worker in 2 s", after - before);
        for (int i = 0; i < 160 && workers(); i++) usleep(100000);
        CHECK(workers() == 0, "the worker stays");
        free(memset(malloc(64 * MIB), 1, 64 * MIB));
        wait_below(start + 16 * MIB, 6);
    } else if (!strcmp(mode, "early")) {
        /* Pages of half-used spans, none of which gets empty. For a window of 4 s and small pages. */
        enum { OBJECTS = 20000, KEPT = 8 };
        static char *p[OBJECTS];
        for (int i = 0; i < OBJECTS; i++) { CHECK((p[i] = malloc(4096))); fill(p[i], 4096, i); }
        CHECK(malloc(64 * MIB));
        usleep(500000);
        if (!workers()) { puts("skipped: no worker"); return 0; }
        size_t most = rss();
        for (int i = 0; i < OBJECTS; i++) if (i % KEPT) free(p[i]);
        CHECK(rss() > most - 4 * MIB, "%zu of %zu", rss(), most);
        printf("back after %.2f s\n", wait_below(most - 50 * MIB, 6.5));
        for (int i = 0; i < OBJECTS; i += KEPT) VERIFY(p[i], (size_t)4096, i);
    } else if (!strcmp(mode, "awaits")) {
        CHECK(malloc(64 * MIB));
        usleep(200000);
        if (!workers()) { puts("skipped: no worker"); return 0; }
        for (int i = 0; i < 150 && workers(); i++) usleep(100000);
        CHECK(workers() == 0, "the worker stays");
    } else if (!strcmp(mode, "polls")) {
        free(memset(malloc(64 * MIB), 1, 64 * MIB));
        usleep(200000);
        if (!workers()) { puts("skipped: no worker"); return 0; }
        int gone = 0;
        for (int i = 0; i < 1700 && !(gone = i % 10 == 0 && !workers()); i++) {
            void *p[2];
            for (int j = 0; j < 2; j++) { CHECK((p[j] = malloc(900000))); memset(p[j], 1, 900000); }
            for (int j = 0; j < 2; j++) free(p[j]);
            churn(i, 50, 20, 9);
            usleep(10000);
        }
        CHECK(gone, "the worker stays");
    } else if (!strcmp(mode, "release")) {
        size_t alive = fill_and_free(1024, 32768, 192 * MIB), before = rss(), said = release(), left = left_behind();
        printf("%zu KiB of %zu left, %zu of %zu pages without a live byte\n", rss() / 1024, before / 1024, left, (top - base) / PAGE);
        CHECK(said > 64 * MIB && left < alive / PAGE / 50 + 256, "%zu pages without a live byte are there", left);
        verify();
        for (int i = 0; i < 3; i++) {
            unsigned char *z = calloc(1, 64 * MIB), *small[256];
            CHECK(z && not_zero(z, 64 * MIB) < 0);
            for (int j = 0; j < 256; j++) CHECK((small[j] = calloc(1, 20000)) && not_zero(small[j], 20000) < 0);
            memset(z, 1, 64 * MIB);
            for (int j = 0; j < 256; j++) free(memset(small[j], 1, 20000));
            free(z);
            release();
            verify();
        }
    } else if (!strcmp(mode, "shared")) {
        const char *usage = argc > 2 ? argv[2] : NULL;
        fill_and_free(4096, 16384, 256 * MIB);
        pid_t sharer = fork();
        if (sharer == 0) { alarm(40); pause(); _exit(0); }
        size_t before = usage ? number_in(usage) : 0, most = rss(), said = release();
        size_t now = usage ? number_in(usage) : 0, fell = most - rss();
        printf("said %zu MiB, RSS fell by %zu, held %zu\n", said / MIB, fell / MIB, (size_t)figure(UNSPLIT) / MIB);
        fflush(stdout);
        if (figure(UNSPLIT) < 64 * MIB && fell < 64 * MIB) { puts("skipped: no huge pages"); kill(sharer, SIGKILL); return 0; }
        /* Where the heap begins there are 16 MiB of small pages; those count, and go with the child. */
        CHECK(figure(UNSPLIT) > 64 * MIB && said < 32 * MIB && fell < 32 * MIB, "a shared huge page counts as given back");
        if (usage) CHECK(said < before - now + 48 * MIB, "the system got %zd MiB", (ssize_t)(before - now) / (ssize_t)MIB);
        verify();
        CHECK(kill(sharer, SIGKILL) == 0 && waitpid(sharer, NULL, 0) == sharer);
        for (int i = 0; i < 1000 && figure(UNSPLIT); i++) { usleep(10000); said += release(); }
        CHECK(figure(UNSPLIT) == 0 && said > 128 * MIB, "%zu MiB in all", said / MIB);
        CHECK(rss() < most - 128 * MIB);
        if (usage) {
            size_t got = before - number_in(usage);
            CHECK(said < got + 32 * MIB && got < said + 32 * MIB, "said %zu MiB, the system got %zu", said / MIB, got / MIB);
        }
        verify();
    } else if (!strcmp(mode, "busy")) {
        enum { MANY = 1 << 16, FEW = 200 };
        static char *all[MANY], *few[FEW];
        for (int i = 0; i < MANY; i++) all[i] = memset(malloc(48 + i * 37 % 3000), 1, 48);
        for (int i = 0; i < MANY; i++) free(all[i]);
        size_t much = figure(CACHED), now = much;
        int cpus = sysconf(_SC_NPROCESSORS_ONLN);
        /* Never the same twice, so neither a CPU nor a class is idle. */
        for (int turn = 0; turn < 1000 && now > 3 * MIB; turn++) {
            if (cpus > 1) pin(turn % 2, 1);
            for (int i = 0; i < FEW; i++) {
                free(few[i]);
                few[i] = (turn + i) % 3 ? malloc(48 + (turn + i) * 37 % 3000) : NULL;
            }
            usleep(10000);
            now = figure(CACHED);
        }
        CHECK(much > 6 * MIB && now <= 3 * MIB, "%zu of %zu KiB stay cached", now / 1024, much / 1024);
    } else if (!strcmp(mode, "held")) {
        fill_and_free(4096, 16384, 256 * MIB);
        pid_t sharer = fork();
        if (sharer == 0) { alarm(50); pause(); _exit(0); }
        for (int i = 0; i < 300 && !figure(UNSPLIT); i++) usleep(10000);
        if (!figure(UNSPLIT)) { puts("skipped: nothing is held"); kill(sharer, SIGKILL); return 0; }
        /* All that stays is told of, whichever span was the first of its block to be tried. One zone only. */
        for (int i = 0; top - base < 8 * GIB && figure(UNSPLIT) < left_behind() * PAGE / 4 * 3; i++) {
            CHECK(i < 2000, "%zu of %zu MiB are told of", (size_t)figure(UNSPLIT) / MIB, left_behind() * PAGE / MIB);
            usleep(10000);
        }
        pid_t pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (pid == 0) {
            for (int i = 0; i < 4; i++) { free(memset(malloc(64 * MIB), 1, 64 * MIB)); usleep(600000); }
            churn(1, 3000, 300, 16);
            verify();
            _exit(0);
        }
        must_end_well(pid);
        CHECK(kill(sharer, SIGKILL) == 0 && waitpid(sharer, NULL, 0) == sharer);
        for (int i = 0; i < 3000 && figure(UNSPLIT); i++) usleep(10000);
        CHECK(figure(UNSPLIT) == 0, "%zu bytes stay held", (size_t)figure(UNSPLIT));
        verify();
    } else CHECK(0, "what is %s?", mode);
    puts("ok");
}
