/* The end of a large process, as its parent and others see it: exit MODE. Needs exit=detached and an
 * exit_threshold that the children reach (32M).
 *   ways          each way to end × threads × a forked child that outlives it × an exec before: the status, one
 *                 SIGCHLD, no other child to wait for, the helper gone soon after
 *   hangup        the same by a terminal that hangs up
 *   seen MS       1 GiB: the parent's wait returns within MS of the signal, the best of several
 *   later MS      positive control: it does not
 *   port          a listening socket can be bound again at once
 *   pipe          a pipe's reader sees its end at once
 *   flock         a lock on a descriptor is free at once, one on a mapped file within 5 ms
 *   waits         what a program with a helper sees of its own children
 *   killed        somebody kills the helper: data and end are whole
 *   spawned       a posix_spawn child that outlives the program
 *   small         a small program has no helper */
#include "exit.h"
#include <arpa/inet.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/file.h>
#include <sys/socket.h>

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

/* What a child has beside memory. */
static void hold(const char *with)
{
    if (!strncmp(with, "port:", 5)) {
        struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(atoi(with + 5)),
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
        int s = socket(AF_INET, SOCK_STREAM, 0);
        CHECK(s >= 0 && !bind(s, (void *)&here, sizeof here) && !listen(s, 1));
    }
    if (!strncmp(with, "lock:", 5)) {
        int f = open(with + 5, O_RDWR);
        CHECK(f >= 0 && !flock(f, LOCK_EX | LOCK_NB));
    }
    if (!strncmp(with, "map:", 4)) {
        int f = open(with + 4, O_RDWR);
        CHECK(f >= 0 && !flock(f, LOCK_EX | LOCK_NB));
        char *p = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, f, 0);
        CHECK(p != MAP_FAILED);
        *p = 1;
        close(f);
    }
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
    /* Before there is a helper: it must not keep a copy. */
    hold(a[7]);
    hold_memory(atoi(a[3]));
    if (execs) {
        CHECK(await_helper(getpid()));
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
    await_gone(c.helper);
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
    if (master < 0 || grantpt(master) || unlockpt(master)) { puts("skipped: no terminal"); return 0; }
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
    pid_t helper = await_helper(pid);
    CHECK(helper, "no helper was made");
    CHECK(getsid(helper) != pid, "the helper is in the terminal's session");
    close(master);
    CHECK(waitpid(pid, &status, 0) == pid && fits("hup", status), "%x", status);
    await_gone(helper);
    return passed();
}

/* Seconds from the signal to the wait's return, the best of several. */
static double best_seen(int wants)
{
    double best = 1e9;
    for (int i = 0; i < (wants ? 6 : 2); i++) {
        struct plan plan = {"kill", 1024, 0, 0, 0, NULL};
        struct child c = start(&plan, wants, -1);
        usleep(20000);
        double began = now();
        end_child(&c, "kill");
        int status = wait_for(&c);
        double took = now() - began;
        CHECK(fits("kill", status));
        if (took < best) best = took;
        if (c.helper) await_gone(c.helper);
        forget(&c);
        if (best < 0.001) break;
    }
    printf("best %.2f ms\n", best * 1e3);
    return best;
}

static int bind_to(int port)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(port),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof here;
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (s < 0 || bind(s, (void *)&here, size) || listen(s, 1)) { close(s); return -1; }
    CHECK(!getsockname(s, (void *)&here, &size));
    close(s);
    return ntohs(here.sin_port);
}

static int port(int wants)
{
    for (int i = 0; i < 4; i++) {
        char with[32];
        int number = bind_to(0);
        CHECK(number > 0);
        snprintf(with, sizeof with, "port:%d", number);
        struct plan plan = {i % 2 ? "exit" : "kill", 256, 0, 0, 0, with};
        struct child c = start(&plan, wants, -1);
        CHECK(bind_to(number) < 0);
        end_child(&c, plan.way);
        wait_for(&c);
        CHECK(bind_to(number) == number, "port %d is still taken", number);
        if (c.helper) await_gone(c.helper);
        forget(&c);
    }
    return passed();
}

/* The child's descriptor 3 is the pipe. */
static int pipe_end(int wants)
{
    double best = 1e9;
    for (int i = 0; i < (wants ? 6 : 2); i++) {
        struct plan plan = {i % 2 ? "exit" : "kill", 256, 0, 0, 0, NULL};
        struct child c = start(&plan, wants, -1);
        char byte;
        double began = now();
        end_child(&c, plan.way);
        CHECK(read(c.says, &byte, 1) == 0);
        if (now() - began < best) best = now() - began;
        wait_for(&c);
        if (c.helper) await_gone(c.helper);
        forget(&c);
    }
    printf("best %.2f ms\n", best * 1e3);
    CHECK(best < 0.005, "%.2f ms", best * 1e3);
    return passed();
}

/* Seconds until the lock is free, from the wait's return on. */
static double lock_free(const char *kind, const char *file, int wants)
{
    char with[300];
    snprintf(with, sizeof with, "%s:%s", kind, file);
    struct plan plan = {"kill", 256, 0, 0, 0, with};
    struct child c = start(&plan, wants, -1);
    int f = open(file, O_RDWR | O_CLOEXEC);
    CHECK(f >= 0 && flock(f, LOCK_EX | LOCK_NB) < 0, "the child has no lock");
    end_child(&c, "kill");
    wait_for(&c);
    double began = now();
    while (flock(f, LOCK_EX | LOCK_NB)) {
        CHECK(now() - began < 5, "%s: not free after 5 s", kind);
        sched_yield();
    }
    double took = now() - began;
    close(f);
    if (c.helper) await_gone(c.helper);
    forget(&c);
    return took;
}

static int locks(int wants)
{
    char file[] = "/tmp/ebbtide-exit-XXXXXX";
    int f = mkstemp(file);
    CHECK(f >= 0 && !ftruncate(f, PAGE));
    close(f);
    double plain = 1e9, mapped = 1e9;
    for (int i = 0; i < 4; i++) {
        double a = lock_free("lock", file, wants), b = lock_free("map", file, wants);
        if (a < plain) plain = a;
        if (b < mapped) mapped = b;
        /* Nobody is a second late by chance. */
        if (a > 1 && b > 1) break;
    }
    unlink(file);
    printf("plain %.3f ms, mapped %.2f ms\n", plain * 1e3, mapped * 1e3);
    CHECK(plain < 0.0005 && mapped < 0.005);
    return passed();
}

/* This process itself has a helper. */
static int waits(int wants)
{
    int status;
    hold_memory(48);
    pid_t helper = wants ? await_helper(getpid()) : helper_of(getpid());
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
    pid_t helper = await_helper(getpid());
    CHECK(helper && !kill(helper, SIGKILL));
    await_gone(helper);
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
        if (i % 2) await_gone(c.helper);
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
            CHECK(await_helper(getpid()));
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
    if (!strcmp(mode, "child")) return child(argv);
    /* A third word: there is no helper to be found, the check alone is on trial. */
    int wants = argc <= 2 || strcmp(argv[argc - 1], "alone");
    signal(SIGCHLD, count_child);
    if (!strcmp(mode, "ways")) return all_ways();
    if (!strcmp(mode, "hangup")) return hangup();
    if (!strcmp(mode, "seen")) { CHECK(best_seen(wants) * 1e3 < atof(argv[2])); return passed(); }
    if (!strcmp(mode, "port")) return port(wants);
    if (!strcmp(mode, "pipe")) return pipe_end(wants);
    if (!strcmp(mode, "flock")) return locks(wants);
    if (!strcmp(mode, "waits")) return waits(wants);
    if (!strcmp(mode, "killed")) return killed();
    if (!strcmp(mode, "spawned")) return spawned();
    if (!strcmp(mode, "small")) return small();
    CHECK(0, "exit MODE");
}
