/* When a process has a statistics page: pages MODE DIR, with stats_dir=DIR.
 *   small    never: it is young and small                large   from 16 MiB on
 *   old      from 1 s on, at the next slow path          killed  as large, then SIGKILL
 *   forks    a child has its own, and ends without harm to its parent's; so does a raw fork
 *   execs    a process that calls execve makes a new one, though a child still has the old one mapped
 *   others   a process of another process namespace with the same number keeps its page (root)
 *   late     the same, though the other process would make its own only at its end (root)
 *   vforks   a child of vfork, in its parent's memory, makes no page under its own number
 *   nowhere  the end of a process without a page writes nowhere; it maps address 0 (root) */
#include "check.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>

static const char *dir;

/* The page's inode number; 0: there is none, or its maker has not written it yet. */
static ino_t has_page(pid_t pid)
{
    char path[300];
    struct stat known;
    snprintf(path, sizeof path, "%s/%d.ebb", dir, (int)pid);
    return stat(path, &known) || !known.st_size ? 0 : known.st_ino;
}

static void grow(size_t mib)
{
    for (size_t i = 0; i < mib; i++) {
        char *p = malloc(MIB);
        CHECK(p);
        memset(p, 1, MIB);
    }
    /* The page follows within 100 ms of slow paths. */
    for (int i = 0; i < 80 && !has_page(getpid()); i++) {
        usleep(20000);
        free(malloc(MIB));
    }
}

static void reaped(pid_t child, int status)
{
    int got = 0;
    CHECK(child > 0 && waitpid(child, &got, 0) == child && got == status, "status %x", got);
}

static void forks(void)
{
    grow(40);
    CHECK(has_page(getpid()));
    pid_t child = fork();
    if (!child) {
        CHECK(!has_page(getpid()));
        grow(40);
        CHECK(has_page(getpid()) && has_page(getppid()));
        exit(0);
    }
    reaped(child, 0);
    CHECK(!has_page(child) && has_page(getpid()), "the child has removed both, or none");
    child = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
    if (!child) exit(0);
    reaped(child, 0);
    CHECK(has_page(getpid()), "a raw fork has removed its parent's page");
}

static void execs(char **argv)
{
    grow(40);
    pid_t child = fork();
    if (!child) {
        sleep(30);
        _exit(0);
    }
    char number[20];
    snprintf(number, sizeof number, "%d", (int)child);
    execl("/proc/self/exe", argv[0], "again", dir, number, NULL);
    CHECK(0, "exec");
}

/* Starts this program as process 1 of a new process namespace. */
static pid_t contained(char **argv, const char *mode)
{
    pid_t outer = fork();
    CHECK(outer >= 0);
    if (outer) return outer;
    CHECK(!unshare(CLONE_NEWPID));
    pid_t inner = fork();
    CHECK(inner >= 0);
    if (!inner) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        execl("/proc/self/exe", argv[0], mode, dir, NULL);
        CHECK(0, "exec");
    }
    int status;
    CHECK(waitpid(inner, &status, 0) == inner);
    _exit(status != 0);
}

static void others(char **argv)
{
    pid_t first = contained(argv, "holds");
    for (int i = 0; i < 500 && !has_page(1); i++) usleep(20000);
    ino_t page = has_page(1);
    CHECK(page);
    reaped(contained(argv, "second"), 0);
    CHECK(has_page(1) == page, "the page of a running process is gone");
    CHECK(!kill(first, SIGKILL) && waitpid(first, NULL, 0) == first);
    /* Now it belongs to nobody. */
    usleep(300000);
    reaped(contained(argv, "large"), 0);
    CHECK(!has_page(1));
}

/* The second process is old enough for a page only at its end. */
static void late(char **argv)
{
    pid_t first = contained(argv, "holds");
    for (int i = 0; i < 500 && !has_page(1); i++) usleep(20000);
    ino_t page = has_page(1);
    CHECK(page);
    reaped(contained(argv, "sleeps"), 0);
    CHECK(has_page(1) == page, "the page of a running process is gone");
    CHECK(!kill(first, SIGKILL) && waitpid(first, NULL, 0) == first);
}

static void slow_calls(int count)
{
    for (int i = 0; i < count; i++) {
        usleep(20000);
        free(malloc(3 * MIB));
    }
}

static void vforks(void)
{
    char *all[40];
    free(malloc(1));
    pid_t child = vfork();
    CHECK(child >= 0);
    if (!child) {
        for (int i = 0; i < 40; i++) memset(all[i] = malloc(MIB), 1, MIB);
        slow_calls(10);
        _exit(0);
    }
    reaped(child, 0);
    slow_calls(20);
    CHECK(!has_page(child), "the page has the number of a child that is gone");
    CHECK(has_page(getpid()));
}

/* The child is old enough for a page at its end, and cannot make one. */
static void nowhere(void)
{
    enum { BYTES = 65536 };
    free(malloc(MIB));
    volatile unsigned char *zero = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
    CHECK(!zero);
    __asm__ volatile("" : "+r"(zero));
    for (int i = 0; i < BYTES; i++) zero[i] = 0x5a;
    pid_t child = fork();
    if (!child) {
        sleep(2);
        exit(0);
    }
    reaped(child, 0);
    for (int i = 0; i < BYTES; i++) CHECK(zero[i] == 0x5a, "byte %d", i);
}

int main(int argc, char **argv)
{
    CHECK(argc > 2);
    const char *mode = argv[1];
    dir = argv[2];
    if (is(mode, "small")) {
        for (int i = 0; i < 1000; i++) free(malloc(i * 100));
        CHECK(!has_page(getpid()));
    } else if (is(mode, "old")) {
        grow(4);
        CHECK(has_page(getpid()), "not after 1.6 s of slow paths");
    } else if (is(mode, "large") || is(mode, "killed")) {
        grow(40);
        CHECK(has_page(getpid()));
        if (is(mode, "killed")) kill(getpid(), SIGKILL);
    } else if (is(mode, "forks")) {
        forks();
    } else if (is(mode, "others")) {
        others(argv);
    } else if (is(mode, "late")) {
        late(argv);
    } else if (is(mode, "sleeps")) {
        free(malloc(MIB));
        usleep(1500000);
        /* Without a slow call at the end. */
        exit(0);
    } else if (is(mode, "vforks")) {
        vforks();
    } else if (is(mode, "nowhere")) {
        nowhere();
    } else if (is(mode, "second")) {
        grow(40);
    } else if (is(mode, "holds")) {
        grow(40);
        pause();
    } else if (is(mode, "execs")) {
        execs(argv);
    } else if (is(mode, "again")) {
        grow(40);
        CHECK(has_page(getpid()));
        CHECK(!kill(atoi(argv[3]), SIGKILL));
    } else {
        CHECK(0, "no mode %s", mode);
    }
    return passed();
}
