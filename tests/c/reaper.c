/* A helper takes memory back after the program's end: reaper MODE. Needs exit=detached, exit_threshold=32M.
 *   exit _exit quick kill segv abort term hup leave   a program of 128 MiB ends so: its end is seen at once, the
 *            helper is there before and gone after it, and waiting finds no other child
 *   many     a hundred short programs leave no process and no memory behind (fewer where their helpers take long)
 *   limit    where no process can be had, there is no helper, and all goes on
 *   apart    programs that end right after a helper was made leave no descriptor open
 *   alone HOW  grows, and ends so at once
 *   none     a small program has none
 *   off      exit=inline: a large one has none */
#include "helper.h"
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>

static const size_t size = 128 * MIB;
static volatile char *memory;

static int none(size_t bytes);

static void grow(size_t bytes)
{
    memory = filled(bytes);
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
    pid_t helper = must_have_helper(child);
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
    double gone = await_gone(helper, 10);
    CHECK(waitpid(-1, &status, WNOHANG) == -1 && errno == ECHILD);
    CHECK(!access("/proc", F_OK) && helper_of(child) == 0);
    fprintf(stderr, "seen after %.2f ms, helper gone %.2f ms later\n", seen * 1e3, gone * 1e3);
    CHECK(seen < 0.5 + (!strcmp(how, "leave") ? 0.05 : 0), "%.3f s", seen);
    return passed();
}

/* Collects helpers until at most so many of these programs may have one. Each has its turn, of 5 s and what its idle
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
        must_end_well(child);
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
    if (conf && strstr(conf, "exit=detached")) must_have_helper(getpid());
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

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (is(mode, "apart")) return apart();
    if (is(mode, "many")) return many();
    if (is(mode, "limit")) return limited();
    if (is(mode, "none")) return none(MIB);
    if (is(mode, "off")) return none(size);
    if (is(mode, "alone")) return alone(argv[2]);
    return ends(mode);
}
