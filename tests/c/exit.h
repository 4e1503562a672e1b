/* Shared by the programs that look at a large process's end from its parent: starting it, ending it, waiting for it. A
 * started process is a fresh one: this program again, as `child`. */
#pragma once
#include "helper.h"
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
    const char *way;    /* how it ends, see ways */
    size_t mib;         /* what it holds */
    int threads;        /* that allocate meanwhile */
    int forks;          /* 1: a forked child outlives it */
    int execs;          /* 1: it is in its second program when it ends */
    const char *with;   /* what else it has: the program's own affair */
};

struct child {
    pid_t pid, helper;
    int says, go;       /* its descriptors 3 and 4: it keeps the other end of `says` open till its end */
};

enum { SAYS = 3, GO = 4, VERDICT = 5 };

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
    c.helper = wants ? await_helper(c.pid, patience()) : helper_of(c.pid);
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

/* A child without anything else: holds its memory and ends by exit or by a signal. */
__attribute__((unused)) static int plain_child(char **a)
{
    hold_memory(atoi(a[3]));
    say(SAYS);
    if (!strcmp(a[2], "kill")) for (;;) pause();
    hear(GO);
    return 7;
}

/* Whether the program was asked to find a helper: not with the last word `alone`, where the check itself is tried. */
__attribute__((unused)) static int wants_helper(int argc, char **argv) { return argc <= 2 || !is(argv[argc - 1], "alone"); }

/* Waits until the helper of a child that has ended is gone. */
__attribute__((unused)) static void end_of(struct child *c)
{
    if (c->helper) await_gone(c->helper, patience());
    forget(c);
}
