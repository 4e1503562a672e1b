/* The ways in which a large process ends, as its parent sees them: exit MODE. Needs exit=detached and an
 * exit_threshold that the children reach (32M). A last word `alone`: there is no helper to be found, the check alone is tried.
 *   ways          each way to end × threads × a forked child that outlives it × an exec before: the status, one
 *                 SIGCHLD, no other child to wait for, the helper gone soon after
 *   hangup        the same by a terminal that hangs up
 *   waits         what a program with a helper sees of its own children
 *   killed        somebody kills the helper: data and end are whole
 *   spawned       a posix_spawn child that outlives the program
 *   small         a small program has no helper */
#include "exit.h"
#include <spawn.h>
#include <stdatomic.h>

extern char **environ;
static _Atomic int children_ended;

static void count_child(int signal) { (void)signal; children_ended++; }

static void *churner(void *seed)
{
    for (;;) churn((uintptr_t)seed, 2000, 100, 14);
    return NULL;
}

static void *last_thread(void *unused)
{
    (void)unused;
    usleep(20000);
    return NULL;
}

/* A forked child that outlives its parent, and says whether its copy is whole. */
static void leave_a_child(void)
{
    pid_t parent = getpid();
    pid_t child = fork();
    CHECK(child >= 0);
    if (child) {
        /* Out of the group that is signalled. */
        CHECK(!setpgid(child, child));
        return;
    }
    close(SAYS);
    close(GO);
    while (getppid() == parent) usleep(2000);
    usleep(60000);
    char verdict = wrong((void *)held, BLOCK, BLOCK, 0) < 0 ? 'y' : 'n';
    churn(3, 200, 50, 14);
    _exit(write(VERDICT, &verdict, 1) != 1);
}

static int child(char **a)
{
    const char *way = a[2];
    pthread_t t;
    int execs = atoi(a[6]);
    for (int i = 0; i < atoi(a[4]); i++) CHECK(!pthread_create(&t, NULL, churner, (void *)(intptr_t)(i + 1)));
    hold_memory(atoi(a[3]));
    if (execs) {
        CHECK(await_helper(getpid(), patience()));
        a[6] = "0";
        execv("/proc/self/exe", a);
        CHECK(0, "exec");
    }
    if (atoi(a[5])) leave_a_child();
    struct rlimit none = {0, 0};
    setrlimit(RLIMIT_CORE, &none);
    say(SAYS);
    if (!strcmp(way, "kill") || !strcmp(way, "term") || !strcmp(way, "hup")) for (;;) pause();
    hear(GO);
    if (!strcmp(way, "exit")) exit(7);
    if (!strcmp(way, "_exit")) _exit(7);
    if (!strcmp(way, "quick")) quick_exit(7);
    if (!strcmp(way, "abort")) abort();
    if (!strcmp(way, "segv")) *(volatile int *)8 = 1;
    if (!strcmp(way, "leave")) {
        CHECK(!pthread_create(&t, NULL, last_thread, NULL));
        pthread_exit(NULL);
    }
    return 7;
}

static void no_more_children(void)
{
    int status;
    siginfo_t info;
    CHECK(waitpid(-1, &status, 0) == -1 && errno == ECHILD);
    CHECK(waitid(P_ALL, 0, &info, WEXITED | WSTOPPED | WCONTINUED) == -1 && errno == ECHILD);
}

static void one_end(const char *way, int threads, int forks, int execs)
{
    int verdict[2] = {-1, -1};
    struct plan plan = {way, 48, threads, forks, execs, NULL};
    if (forks) CHECK(!pipe2(verdict, O_CLOEXEC));
    children_ended = 0;
    struct child c = start(&plan, 1, verdict[1]);
    end_child(&c, way);
    int status = wait_for(&c);
    CHECK(fits(way, status), "%s ends with %x", way, status);
    CHECK(children_ended == 1, "%d signals", children_ended);
    no_more_children();
    await_gone(c.helper, patience());
    if (forks) {
        char byte = 0;
        close(verdict[1]);
        CHECK(read(verdict[0], &byte, 1) == 1 && byte == 'y', "%s: the forked child: %d", way, byte);
        close(verdict[0]);
    }
    CHECK(children_ended == 1, "%d signals", children_ended);
    forget(&c);
}

static int all_ways(void)
{
    int turn = 0, is_long = getenv("EBBTIDE_TEST_LONG") != NULL;
    for (const char *const *way = ways; *way; way++, turn++)
        for (int mix = 0; mix < 8; mix++) {
            /* In short: nothing else, everything at once, and one of the others in turn. */
            if (!is_long && mix && mix != 7 && mix != 1 + turn % 6) continue;
            /* A process whose other threads go on does not end with the last one. */
            int threads = mix & 1 && strcmp(*way, "leave") ? 3 : 0;
            one_end(*way, threads, mix >> 1 & 1, mix >> 2 & 1);
        }
    return passed();
}

/* A session leader dies when its terminal hangs up: the master closes. */
static int hangup(void)
{
    int master = posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC), status, says[2];
    if (master < 0 || grantpt(master) || unlockpt(master)) return skipped("no terminal");
    char name[64];
    CHECK(!ptsname_r(master, name, sizeof name) && !pipe2(says, O_CLOEXEC));
    pid_t pid = fork();
    if (!pid) {
        setsid();
        int terminal = open(name, O_RDWR);
        CHECK(terminal >= 0 && !ioctl(terminal, TIOCSCTTY, 0));
        dup2(says[1], SAYS);
        fcntl(SAYS, F_SETFD, 0);
        execl("/proc/self/exe", "exit-child", "child", "hup", "48", "2", "0", "0", "", NULL);
        _exit(99);
    }
    close(says[1]);
    hear(says[0]);
    pid_t helper = await_helper(pid, patience());
    CHECK(helper, "no helper was made");
    CHECK(getsid(helper) != pid, "the helper is in the terminal's session");
    close(master);
    CHECK(waitpid(pid, &status, 0) == pid && fits("hup", status), "%x", status);
    await_gone(helper, patience());
    return passed();
}

/* This process itself has a helper. */
static int waits(int wants)
{
    int status;
    hold_memory(48);
    pid_t helper = wants ? await_helper(getpid(), patience()) : helper_of(getpid());
    CHECK(helper || !wants);
    no_more_children();
    CHECK(children_ended == 0);
    for (int i = 0; i < 5; i++) {
        int before = children_ended;
        pid_t pid = fork();
        if (!pid) _exit(i);
        if (i % 2) {
            CHECK(waitpid(-1, &status, 0) == pid && WEXITSTATUS(status) == i);
        } else {
            siginfo_t info;
            CHECK(!waitid(P_ALL, 0, &info, WEXITED) && info.si_pid == pid && info.si_status == i);
        }
        CHECK(children_ended == before + 1);
    }
    CHECK(waitpid(0, &status, WNOHANG) == -1 && errno == ECHILD);
    no_more_children();
    pid_t group = setsid() < 0 ? getpgrp() : getpid();
    CHECK(!helper || getpgid(helper) != group, "the helper is in the program's process group");
    return passed();
}

static int killed(void)
{
    hold_memory(48);
    pid_t helper = await_helper(getpid(), patience());
    CHECK(helper && !kill(helper, SIGKILL));
    await_gone(helper, patience());
    usleep(100000);
    CHECK(children_ended == 0 && wrong((void *)held, BLOCK, BLOCK, 0) < 0);
    churn(5, 2000, 100, 16);
    no_more_children();
    hold_memory(48);
    /* Others see no difference. */
    for (int i = 0; i < 3; i++) {
        struct plan plan = {ways[3 * i], 48, 2, 0, 0, NULL};
        struct child c = start(&plan, 1, -1);
        CHECK(!kill(c.helper, SIGKILL));
        if (i % 2) await_gone(c.helper, patience());
        end_child(&c, plan.way);
        int status = wait_for(&c);
        CHECK(fits(plan.way, status), "%x", status);
        forget(&c);
    }
    return passed();
}

/* posix_spawn is a vfork: until the exec the child shares the memory. Its parent is killed meanwhile. */
static int spawned(void)
{
    for (int i = 0; i < 20; i++) {
        int says[2];
        CHECK(!pipe2(says, O_CLOEXEC));
        pid_t pid = fork();
        if (!pid) {
            hold_memory(48);
            CHECK(await_helper(getpid(), patience()));
            pthread_t t;
            char mark[] = "spawned-child-has-its-arguments";
            char *args[] = {"sh", "-c", "echo $0", strdup(mark), NULL};
            posix_spawn_file_actions_t actions;
            posix_spawn_file_actions_init(&actions);
            posix_spawn_file_actions_adddup2(&actions, says[1], 1);
            pid_t grandchild;
            if (i % 2) CHECK(!pthread_create(&t, NULL, churner, (void *)1));
            CHECK(!posix_spawn(&grandchild, "/bin/sh", &actions, NULL, args, environ));
            kill(getpid(), SIGKILL);
        }
        close(says[1]);
        char text[64] = "";
        ssize_t n = 0, more;
        while ((more = read(says[0], text + n, sizeof text - 1 - n)) > 0) n += more;
        CHECK(!strcmp(text, "spawned-child-has-its-arguments\n"), "%s", text);
        close(says[0]);
        CHECK(waitpid(pid, NULL, 0) == pid);
    }
    return passed();
}

static int small(void)
{
    struct plan plan = {"exit", 4, 2, 0, 0, NULL};
    struct child c = start(&plan, 0, -1);
    usleep(200000);
    CHECK(!helper_of(c.pid));
    end_child(&c, "exit");
    CHECK(fits("exit", wait_for(&c)));
    return passed();
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (is(mode, "child")) return child(argv);
    signal(SIGCHLD, count_child);
    if (is(mode, "ways")) return all_ways();
    if (is(mode, "hangup")) return hangup();
    if (is(mode, "waits")) return waits(wants_helper(argc, argv));
    if (is(mode, "killed")) return killed();
    if (is(mode, "spawned")) return spawned();
    if (is(mode, "small")) return small();
    CHECK(0, "exit MODE");
}
