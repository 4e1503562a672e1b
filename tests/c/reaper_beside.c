/* A helper beside a program that goes on: reaper_beside MODE. Needs exit=detached, exit_threshold=32M.
 *   exec     a program with a helper execs: the helper and the old memory are gone soon
 *   thread   the same by another thread than the main one
 *   join     another thread joins the main one, beside a helper      joined   it waits for it before there is a helper
 *   vfork    a vfork child that outlives its parent keeps its data
 *   fork     forked children have helpers of their own, once they are large
 *   moved    a main thread whose word is not libc's: the helper waits without using the CPU
 *   rights   what the helper has left: no descriptors, no signals, no capabilities, a filter */
#include "helper.h"
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>

static const size_t size = 128 * MIB;
static volatile char *memory;

static void grow(size_t bytes)
{
    memory = filled(bytes);
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
    pid_t helper = must_have_helper(child);
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
    must_have_helper(getpid());
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
        must_have_helper(getpid());
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
    grow(size);
    pid_t own = must_have_helper(getpid());
    pid_t child = fork();
    if (!child) {
        CHECK(helper_of(getpid()) == 0);
        char *more = malloc(size);
        memset(more, 1, size);
        must_have_helper(getpid());
        for (size_t at = 0; at < size; at += PAGE) CHECK(memory[at] == 7);
        _exit(0);
    }
    must_end_well(child);
    usleep(100000);
    for (size_t at = 0; at < size; at += PAGE) CHECK(memory[at] == 7);
    CHECK(helper_of(getpid()) == own);
    return passed();
}

/* The filter comes last of all. */
static int has_filter(pid_t pid)
{
    char text[4096];
    read_text(text, sizeof text, "/proc/%d/status", (int)pid);
    return number_after(text, "Seccomp:") == 2;
}

static int rights(void)
{
    char path[64], line[256], cwd[256];
    int seen = 0, descriptors = 0;
    int low = open("/dev/null", O_RDONLY);
    grow(size);
    pid_t helper = must_have_helper(getpid());
    for (double start = now(); !has_filter(helper) && now() - start < 10;) usleep(1000);
    snprintf(path, sizeof path, "/proc/%d/status", (int)helper);
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

static int moved(void)
{
    static int word = 4711;
    pid_t child = syscall(SYS_clone, SIGCHLD | CLONE_CHILD_CLEARTID, NULL, NULL, &word, NULL);
    CHECK(child >= 0);
    if (!child) {
        grow(size);
        char path[64], text[512] = "";
        unsigned long user = 0, system = 0;
        snprintf(path, sizeof path, "/proc/%d/stat", (int)must_have_helper(getpid()));
        usleep(1000 * 1000);
        int fd = open(path, O_RDONLY);
        CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
        CHECK(sscanf(strrchr(text, ')'), ") %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %lu %lu", &user, &system) == 2);
        CHECK(user + system <= 5, "the helper has used %lu hundredths of a second", user + system);
        _exit(0);
    }
    must_end_well(child);
    return passed();
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (is(mode, "exec")) return exec_soon(0.05);
    if (is(mode, "thread")) return exec_away(1), passed();
    if (is(mode, "join")) return join(0);
    if (is(mode, "joined")) return join(1);
    if (is(mode, "vfork")) return outlive();
    if (is(mode, "fork")) return forked();
    if (is(mode, "moved")) return moved();
    if (is(mode, "rights")) return rights();
    CHECK(0, "reaper_beside MODE");
}
