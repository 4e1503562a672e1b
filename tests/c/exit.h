/* Shared by the programs that look at a large process's end from its parent: starting it, finding its helper,
 * ending it, waiting for it. A started process is a fresh one: this program again, as `child`. */
#pragma once
#include "check.h"
#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>

/* What a child is told on its command line. */
struct plan {
    const char *way;    /* how it ends, see end_by */
    size_t mib;         /* what it holds */
    int threads;        /* that allocate meanwhile */
    int forks;          /* 1: a forked child outlives it */
    int execs;          /* 1: it is in its second program when it ends */
    const char *with;   /* what else it has, see hold in exit.c */
};

struct child {
    pid_t pid, helper;
    int says, go;       /* its descriptors 3 and 4: it keeps the other end of `says` open till its end */
};

enum { SAYS = 3, GO = 4, VERDICT = 5 };

/* A text file of /proc, or an empty text. */
static ssize_t read_text(char *text, size_t most, const char *format, int pid, int task)
{
    char path[96];
    snprintf(path, sizeof path, format, pid, task);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, most - 1);
    if (fd >= 0) close(fd);
    text[n > 0 ? n : 0] = 0;
    return n;
}

/* State of a process by its stat: a letter, or 0 when it is gone. */
__attribute__((unused)) static char state_of(pid_t pid)
{
    char text[512];
    if (read_text(text, sizeof text, "/proc/%d/stat", pid, 0) <= 0) return 0;
    char *behind = strrchr(text, ')');
    return behind ? behind[2] : 0;
}

/* The helper of a process, or 0: a child of that name, of any of its threads. */
__attribute__((unused)) static pid_t helper_of(pid_t parent)
{
    char path[64], children[4096], name[32];
    pid_t found = 0;
    snprintf(path, sizeof path, "/proc/%d/task", (int)parent);
    DIR *tasks = opendir(path);
    if (!tasks) return 0;
    for (struct dirent *e; !found && (e = readdir(tasks));) {
        read_text(children, sizeof children, "/proc/%d/task/%d/children", parent, atoi(e->d_name));
        for (char *at = children, *next; !found; at = next) {
            pid_t pid = strtol(at, &next, 10);
            if (next == at) break;
            read_text(name, sizeof name, "/proc/%d/comm", pid, 0);
            if (!strncmp(name, "ebbtide/exit", 12) && state_of(pid) != 'Z') found = pid;
        }
    }
    closedir(tasks);
    return found;
}

/* Seconds to wait for what should come or go. Beside a busy loop on each CPU, a helper of 1 GiB has taken 17. */
__attribute__((unused)) static double patience(void)
{
    const char *given = getenv("EXIT_PATIENCE");
    return given ? atof(given) : 40;
}

/* Waits for it; 0 if none comes. */
__attribute__((unused)) static pid_t await_helper(pid_t parent)
{
    for (double start = now(); now() - start < patience(); usleep(500)) {
        pid_t helper = helper_of(parent);
        if (helper) return helper;
    }
    return 0;
}

/* Seconds until a process is gone (a zombie holds nothing). */
__attribute__((unused)) static double await_gone(pid_t pid)
{
    double start = now();
    for (;;) {
        char state = state_of(pid);
        double passed_s = now() - start;
        if (!state || state == 'Z') return passed_s;
        CHECK(passed_s < patience(), "%d is still there after %.1f s", (int)pid, passed_s);
        usleep(300);
    }
}

static volatile char *held;

#define BLOCK (4 * MIB)

/* Fills so much memory in blocks, each with its pattern. */
__attribute__((unused)) static void hold_memory(size_t mib)
{
    for (size_t at = 0; at < mib * MIB; at += BLOCK) {
        char *p = malloc(BLOCK);
        CHECK(p);
        fill(p, BLOCK, at);
        if (!held) held = p;
    }
}

__attribute__((unused)) static void hear(int fd)
{
    char byte;
    ssize_t n;
    while ((n = read(fd, &byte, 1)) < 0 && errno == EINTR) {}
    CHECK(n == 1, "the other process has ended early");
}

__attribute__((unused)) static void say(int fd) { CHECK(write(fd, "x", 1) == 1); }

/* Starts a child, and waits until it holds its memory and has its helper. `wants`: fails without one. */
__attribute__((unused)) static struct child start(const struct plan *plan, int wants, int verdict)
{
    int says[2], go[2];
    char mib[24], threads[12], forks[12], execs[12];
    snprintf(mib, sizeof mib, "%zu", plan->mib);
    snprintf(threads, sizeof threads, "%d", plan->threads);
    snprintf(forks, sizeof forks, "%d", plan->forks);
    snprintf(execs, sizeof execs, "%d", plan->execs);
    CHECK(!pipe2(says, O_CLOEXEC) && !pipe2(go, O_CLOEXEC));
    struct child c = {.pid = fork(), .says = says[0], .go = go[1]};
    CHECK(c.pid >= 0);
    if (!c.pid) {
        setpgid(0, 0);
        /* Out of the way of 3, 4 and 5 first. */
        int s = fcntl(says[1], F_DUPFD, 20), g = fcntl(go[0], F_DUPFD, 20), v = verdict < 0 ? -1 : fcntl(verdict, F_DUPFD, 20);
        dup2(s, SAYS); dup2(g, GO);
        close(s); close(g);
        if (v >= 0) { dup2(v, VERDICT); close(v); }
        execl("/proc/self/exe", "exit-child", "child", plan->way, mib, threads, forks, execs,
              plan->with ? plan->with : "", NULL);
        _exit(99);
    }
    close(says[1]);
    close(go[0]);
    hear(c.says);
    c.helper = wants ? await_helper(c.pid) : helper_of(c.pid);
    CHECK(c.helper || !wants, "no helper was made");
    return c;
}

/* Lets it end, by a signal if that is its way. */
__attribute__((unused)) static void end_child(const struct child *c, const char *way)
{
    if (!strcmp(way, "kill")) CHECK(!kill(c->pid, SIGKILL));
    else if (!strcmp(way, "term")) CHECK(!kill(-c->pid, SIGTERM));
    else say(c->go);
}

__attribute__((unused)) static void forget(struct child *c) { close(c->says); close(c->go); }

/* The ways to end. */
__attribute__((unused)) static const char *const ways[] = {
    "exit", "_exit", "quick", "return", "leave", "abort", "kill", "segv", "term", NULL};

/* Whether a wait status is that of the way. */
__attribute__((unused)) static int fits(const char *way, int status)
{
    static const struct { const char *way; int signal; } by[] = {
        {"abort", SIGABRT}, {"kill", SIGKILL}, {"segv", SIGSEGV}, {"term", SIGTERM}, {"hup", SIGHUP}};
    for (size_t i = 0; i < sizeof by / sizeof *by; i++)
        if (!strcmp(way, by[i].way)) return WIFSIGNALED(status) && WTERMSIG(status) == by[i].signal;
    return WIFEXITED(status) && WEXITSTATUS(status) == (strcmp(way, "leave") ? 7 : 0);
}

__attribute__((unused)) static int wait_for(const struct child *c)
{
    int status;
    pid_t found;
    while ((found = waitpid(c->pid, &status, 0)) < 0 && errno == EINTR) {}
    CHECK(found == c->pid);
    return status;
}

__attribute__((unused)) static int open_slots(void)
{
    char path[300];
    CHECK(getenv("XDG_RUNTIME_DIR"), "no XDG_RUNTIME_DIR");
    snprintf(path, sizeof path, "%s/ebbtide-exit.lock", getenv("XDG_RUNTIME_DIR"));
    int slots = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(slots >= 0);
    return slots;
}

/* All slots, as if this user's other helpers had them. */
__attribute__((unused)) static int take_slots(void)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    int slots = open_slots();
    /* A helper's last thread may have it a moment longer. */
    for (double began = now(); fcntl(slots, F_OFD_SETLK, &all); usleep(1000))
        CHECK(errno == EAGAIN && now() - began < patience(), "a slot is taken");
    return slots;
}
