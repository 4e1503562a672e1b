/* A helper takes memory back after the program's end: reaper MODE. Needs exit=detached, exit_threshold=32M.
 *   exit _exit quick kill segv abort term hup leave   a program of 128 MiB ends so: its end is seen at once, the
 *            helper is there before and gone after it, and waiting finds no other child
 *   exec     a program with a helper execs: the helper and the old memory are gone soon
 *   thread   the same by another thread than the main one
 *   join     another thread joins the main one, beside a helper
 *   vfork    a vfork child that outlives its parent keeps its data
 *   fork     forked children have helpers of their own, once they are large
 *   many     a hundred short programs leave no process and no memory behind (fewer where their helpers take long)
 *   limit    where no process can be had, there is no helper, and all goes on
 *   apart    programs that end right after a helper was made leave no descriptor open
 *   moved    a main thread whose word is not libc's: the helper waits without using the CPU
 *   rights   what the helper has left: no descriptors, no signals, no capabilities, a filter
 *   alone HOW  grows, and ends so at once
 *   none     a small program has none
 *   off      exit=inline: a large one has none */
#include "reaper.h"
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static const size_t size = 128 * MIB;
static volatile char *memory;

static int none(size_t bytes);

static void grow(size_t bytes)
{
    memory = malloc(bytes);
    CHECK(memory);
    memset((char *)memory, 7, bytes);
}

static void *leave_later(void *unused)
{
    (void)unused;
    usleep(50000);
    _exit(0);
}

static void end(const char *how)
{
    if (!strcmp(how, "exit")) exit(0);
    if (!strcmp(how, "_exit")) _exit(0);
    if (!strcmp(how, "quick")) quick_exit(0);
    if (!strcmp(how, "abort")) abort();
    if (!strcmp(how, "segv")) *(volatile int *)0 = 1;
    if (!strcmp(how, "leave")) {
        pthread_t t;
        CHECK(!pthread_create(&t, NULL, leave_later, NULL));
        pthread_exit(NULL);
    }
    for (;;) pause();
}

static int ends(const char *how)
{
    int ready[2], go[2], status;
    char byte = 0;
    CHECK(!pipe(ready) && !pipe(go));
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        setpgid(0, 0);
        close(ready[0]);
        close(go[1]);
        grow(size);
        CHECK(write(ready[1], "x", 1) == 1 && read(go[0], &byte, 1) == 1);
        end(how);
    }
    close(ready[1]);
    CHECK(read(ready[0], &byte, 1) == 1);
    pid_t helper = wait_for_helper(child);
    usleep(20000);
    double start = now();
    CHECK(write(go[1], "x", 1) == 1);
    if (!strcmp(how, "kill")) CHECK(!kill(child, SIGKILL));
    if (!strcmp(how, "term")) CHECK(!kill(-child, SIGTERM));
    if (!strcmp(how, "hup")) CHECK(!kill(-child, SIGHUP));
    CHECK(waitpid(child, &status, 0) == child);
    double seen = now() - start;
    /* The pipe's other end goes with the program, not with its helper. */
    CHECK(read(ready[0], &byte, 1) == 0);
    double gone = wait_gone(helper, 10);
    CHECK(waitpid(-1, &status, WNOHANG) == -1 && errno == ECHILD);
    CHECK(!access("/proc", F_OK) && helper_of(child) == 0);
    fprintf(stderr, "seen after %.2f ms, helper gone %.2f ms later\n", seen * 1e3, gone * 1e3);
    CHECK(seen < 0.5 + (!strcmp(how, "leave") ? 0.05 : 0), "%.3f s", seen);
    return passed();
}

static void *exec_sleep(void *unused)
{
    (void)unused;
    execl("/bin/sleep", "sleep", "20", NULL);
    _exit(1);
}

static double exec_away(int by_thread)
{
    int ready[2], go[2], status;
    char byte;
    CHECK(!pipe2(ready, O_CLOEXEC) && !pipe2(go, O_CLOEXEC));
    pid_t child = fork();
    if (!child) {
        grow(size);
        CHECK(write(ready[1], "x", 1) == 1 && read(go[0], &byte, 1) == 1);
        unsetenv("LD_PRELOAD");
        if (by_thread) {
            pthread_t t;
            CHECK(!pthread_create(&t, NULL, exec_sleep, NULL));
            pthread_exit(NULL);
        }
        exec_sleep(NULL);
    }
    close(ready[1]);
    CHECK(read(ready[0], &byte, 1) == 1);
    pid_t helper = wait_for_helper(child);
    usleep(20000);
    CHECK(write(go[1], "x", 1) == 1);
    CHECK(read(ready[0], &byte, 1) == 0);
    double gone = 0, start = now();
    while (helper_of(child)) {
        gone = now() - start;
        CHECK(gone < 1, "the helper stays after an exec");
        usleep(200);
    }
    fprintf(stderr, "helper gone %.2f ms after the exec\n", gone * 1e3);
    CHECK(!kill(helper, 0) || errno == ESRCH);
    CHECK(!kill(child, SIGKILL) && waitpid(child, &status, 0) == child);
    CHECK(!close(ready[0]) && !close(go[0]) && !close(go[1]));
    return gone;
}

/* Others may have the CPUs, but not every time. */
static int exec_soon(double most)
{
    double gone = most;
    for (int i = 0; i < 8 && gone >= most; i++) gone = exec_away(0);
    CHECK(gone < most, "never earlier than %.0f ms after an exec", most * 1e3);
    return passed();
}

static pthread_t main_thread;

static void *join_main(void *unused)
{
    (void)unused;
    CHECK(!pthread_join(main_thread, NULL));
    _exit(passed());
}

static int join(int first)
{
    pthread_t t;
    main_thread = pthread_self();
    if (first) {
        CHECK(!pthread_create(&t, NULL, join_main, NULL));
        usleep(20000);
    }
    grow(size);
    wait_for_helper(getpid());
    usleep(20000);
    if (!first) {
        CHECK(!pthread_create(&t, NULL, join_main, NULL));
        usleep(20000);
    }
    alarm(5);
    pthread_exit(NULL);
}

static int outlive(void)
{
    int verdict[2], status;
    char byte = 0;
    CHECK(!pipe(verdict));
    pid_t child = fork();
    if (!child) {
        grow(size);
        wait_for_helper(getpid());
        volatile int *there = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        *there = 42;
        pid_t parent = getpid();
        if (!vfork()) {
            kill(parent, SIGKILL);
            /* The parent is gone, and its memory is this one's alone. */
            int whole = 1;
            for (int i = 0; i < 60; i++) {
                usleep(5000);
                for (size_t at = 0; at < size; at += PAGE) whole &= memory[at] == 7;
                whole &= *there == 42;
            }
            _exit(write(verdict[1], whole ? "y" : "n", 1) != 1);
        }
        _exit(1);
    }
    CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status));
    close(verdict[1]);
    CHECK(read(verdict[0], &byte, 1) == 1 && byte == 'y', "the vfork child lost its data: %d", byte);
    return passed();
}

static int forked(void)
{
    int status;
    grow(size);
    pid_t own = wait_for_helper(getpid());
    pid_t child = fork();
    if (!child) {
        CHECK(helper_of(getpid()) == 0);
        char *more = malloc(size);
        memset(more, 1, size);
        wait_for_helper(getpid());
        for (size_t at = 0; at < size; at += PAGE) CHECK(memory[at] == 7);
        _exit(0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    usleep(100000);
    for (size_t at = 0; at < size; at += PAGE) CHECK(memory[at] == 7);
    CHECK(helper_of(getpid()) == own);
    return passed();
}

/* The filter comes last of all. */
static int has_filter(const char *status)
{
    char line[256];
    int mode = 0;
    FILE *f = fopen(status, "r");
    CHECK(f);
    while (fgets(line, sizeof line, f)) sscanf(line, "Seccomp: %d", &mode);
    fclose(f);
    return mode == 2;
}

static int rights(void)
{
    char path[64], line[256], cwd[256];
    int seen = 0, descriptors = 0;
    int low = open("/dev/null", O_RDONLY);
    grow(size);
    pid_t helper = wait_for_helper(getpid());
    snprintf(path, sizeof path, "/proc/%d/status", (int)helper);
    for (double start = now(); !has_filter(path) && now() - start < 10;) usleep(1000);
    FILE *f = fopen(path, "r");
    CHECK(f);
    while (fgets(line, sizeof line, f)) {
        unsigned long long value = 0;
        if (sscanf(line, "CapPrm: %llx", &value) == 1) { CHECK(value == 0); seen++; }
        if (sscanf(line, "CapEff: %llx", &value) == 1) { CHECK(value == 0); seen++; }
        if (sscanf(line, "NoNewPrivs: %llu", &value) == 1) { CHECK(value == 1); seen++; }
        if (sscanf(line, "Seccomp: %llu", &value) == 1) { CHECK(value == 2); seen++; }
        /* All but 9 and 19, which cannot be blocked. */
        if (sscanf(line, "SigBlk: %llx", &value) == 1) { CHECK((value | 0x40100) == ~0ull); seen++; }
    }
    fclose(f);
    CHECK(seen == 5, "%d", seen);
    CHECK(getsid(helper) == helper);
    snprintf(path, sizeof path, "/proc/%d/cwd", (int)helper);
    CHECK(readlink(path, cwd, sizeof cwd) == 1 && cwd[0] == '/');
    snprintf(path, sizeof path, "/proc/%d/fd", (int)helper);
    DIR *dir = opendir(path);
    CHECK(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char name[400], target[256] = "";
        if (e->d_name[0] == '.') continue;
        snprintf(name, sizeof name, "%s/%s", path, e->d_name);
        CHECK(readlink(name, target, sizeof target - 1) > 0);
        CHECK(!strncmp(target, "/proc/", 6) || !strncmp(target, "/sys/", 5) || strstr(target, "pidfd")
              || strstr(target, "ebbtide"), "%s", target);
        descriptors++;
    }
    closedir(dir);
    CHECK(descriptors > 0 && low >= 0);
    return passed();
}

/* Collects helpers until at most so many of these programs may have one. Each is admitted, for 5 s and what its idle
 * threads then take to begin and to go, where others want the CPUs: it is late when none has ended for three. */
static void collect(int *programs, int most)
{
    for (double since = now(); *programs > most;) {
        pid_t helper = waitpid(-1, NULL, WNOHANG);
        if (helper > 0) {
            --*programs;
            since = now();
        } else if (helper < 0) {
            CHECK(errno == ECHILD);
            *programs = 0;
        } else {
            CHECK(now() - since < 15, "no helper ends any more, of %d", *programs);
            usleep(500);
        }
    }
}

/* Helpers become this process's children once their programs have ended. */
static int many(void)
{
    enum { AT_ONCE = 4 };
    int status, programs = 0, all = 0;
    CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1));
    for (double start = now(); all < 100 && now() - start < 20; all++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) { grow(40 * MIB); _exit(0); }
        CHECK(waitpid(child, &status, 0) == child && status == 0);
        programs++;
        collect(&programs, AT_ONCE);
    }
    collect(&programs, 0);
    CHECK(waitpid(-1, &status, __WALL | WNOHANG) == -1 && errno == ECHILD);
    fprintf(stderr, "%d programs\n", all);
    return passed();
}

static int alone(const char *how)
{
    const char *conf = getenv("EBBTIDE_CONF");
    grow(size);
    if (conf && strstr(conf, "exit=detached")) wait_for_helper(getpid());
    usleep(50000);
    if (!strcmp(how, "kill")) kill(getpid(), SIGKILL);
    end(how);
    return 1;
}

static int limited(void)
{
    struct rlimit few = {1, 1};
    if (geteuid() == 0) CHECK(!setgid(65534) && !setuid(65534));
    CHECK(!setrlimit(RLIMIT_NPROC, &few));
    return none(size);
}

static int none(size_t bytes)
{
    grow(bytes);
    for (int i = 0; i < 20; i++) {
        usleep(10000);
        free(malloc(300 * KIB));
    }
    CHECK(helper_of(getpid()) == 0);
    return passed();
}

/* The pipe of a program that grows and ends at once has no writer when the wait for it returns. The program waits for its
 * helper to let go, 100 ms at most: where the helper had no CPU for so long, nothing is said of the pipe. */
static int apart(void)
{
    int late = 0, counted = 0;
    double start = now();
    while (counted < 200 && now() - start < 30) {
        int ends[2], status;
        CHECK(!pipe(ends));
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) {
            double before = now();
            volatile char *large = malloc(size);
            int waited_in_vain = now() - before > 0.099;
            *large = 1;
            _exit(waited_in_vain ? 2 : large == NULL);
        }
        close(ends[1]);
        CHECK(waitpid(child, &status, 0) == child && (status == 0 || status == 2 << 8), "%x", status);
        struct pollfd end = {.fd = ends[0], .events = POLLIN};
        int is_open = poll(&end, 1, 0) != 1;
        close(ends[0]);
        if (status) continue;
        counted++;
        late += is_open;
    }
    CHECK(counted >= 20, "%d programs have waited for less than 100 ms", counted);
    CHECK(!late, "%d of %d pipes are open after the end of their program", late, counted);
    return passed();
}

static int moved(void)
{
    static int word = 4711;
    pid_t child = syscall(SYS_clone, SIGCHLD | CLONE_CHILD_CLEARTID, NULL, NULL, &word, NULL);
    CHECK(child >= 0);
    if (!child) {
        grow(size);
        char path[64], text[512] = "";
        unsigned long user = 0, system = 0;
        snprintf(path, sizeof path, "/proc/%d/stat", (int)wait_for_helper(getpid()));
        usleep(1000 * 1000);
        int fd = open(path, O_RDONLY);
        CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
        CHECK(sscanf(strrchr(text, ')'), ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) == 2);
        CHECK(user + system <= 5, "the helper has used %lu hundredths of a second", user + system);
        _exit(0);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child);
    CHECK(status == 0, "the child ended with %x", status);
    return passed();
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (!strcmp(mode, "apart")) return apart();
    if (!strcmp(mode, "moved")) return moved();
    if (!strcmp(mode, "exec")) return exec_soon(0.05);
    if (!strcmp(mode, "thread")) return exec_away(1), passed();
    if (!strcmp(mode, "join")) return join(0);
    if (!strcmp(mode, "joined")) return join(1);
    if (!strcmp(mode, "vfork")) return outlive();
    if (!strcmp(mode, "fork")) return forked();
    if (!strcmp(mode, "rights")) return rights();
    if (!strcmp(mode, "many")) return many();
    if (!strcmp(mode, "limit")) return limited();
    if (!strcmp(mode, "none")) return none(MIB);
    if (!strcmp(mode, "off")) return none(size);
    if (!strcmp(mode, "alone")) return alone(argv[2]);
    return ends(mode);
}
