/* A worker that does not come to its work:
 *   stalled          it is stopped while memory becomes due
 *   stalled pipe     it waits for a CPU at its start: what the program closes meanwhile is closed
 * Another process stops the worker's thread alone. Meanwhile memory becomes due, in parts of huge pages, which threads of
 * the program leave to workers. No call may wait for it; when the worker goes on, memory goes back. For a small `limit`,
 * so that slow paths have much to do. */
#include "check.h"
#include <dirent.h>
#include <fcntl.h>
#include <malloc.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

enum { FIRST = 5000, OBJECTS = 6000, SIZES = 12, ROUNDS = 30, KEPT = 31, CHILDREN = 30 };

static size_t size_of(int i) { return 2000 + 500 * (i * SIZES / OBJECTS); }

/* The first worker, by its name. */
static pid_t worker(void)
{
    DIR *dir = opendir("/proc/self/task");
    pid_t found = 0;
    CHECK(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char path[300], name[20] = "";
        snprintf(path, sizeof path, "/proc/self/task/%s/comm", e->d_name);
        int fd = open(path, O_RDONLY);
        if (fd < 0) continue;
        if (read(fd, name, sizeof name - 1) > 0 && !strcmp(name, "ebbtide/0\n")) found = atoi(e->d_name);
        close(fd);
    }
    closedir(dir);
    return found;
}

/* Stops the thread whose number comes, says so, and lets it go when the other end is closed. */
static void stop_it(int from, int to)
{
    pid_t thread;
    int status;
    char done = 1;
    CHECK(read(from, &thread, sizeof thread) == sizeof thread);
    if (ptrace(PTRACE_SEIZE, thread, 0, 0) || ptrace(PTRACE_INTERRUPT, thread, 0, 0)) done = 0;
    else CHECK(waitpid(thread, &status, __WALL) == thread && WIFSTOPPED(status));
    CHECK(write(to, &done, 1) == 1);
    CHECK(read(from, &thread, sizeof thread) == 0);
    _exit(0);
}

/* On one CPU, a program that goes on is nearly always before the worker that it has just made. */
static void close_before_it_begins(void)
{
    cpu_set_t one;
    int ends[2];
    CPU_ZERO(&one);
    CPU_SET(sched_getcpu(), &one);
    CHECK(!sched_setaffinity(0, sizeof one, &one) && !pipe(ends));
    char *large = malloc(200 * MIB);
    CHECK(large && !close(ends[1]));
    struct pollfd end = { ends[0], POLLIN, 0 };
    CHECK(poll(&end, 1, 0) == 1 && end.revents == POLLHUP, "a pipe is open still");
    for (int i = 0; i < 500 && !worker(); i++) usleep(10000);
    CHECK(worker(), "no worker");
    free(large);
}

static int pipes(void)
{
    int status;
    for (int i = 0; i < CHILDREN; i++) {
        pid_t child = fork();
        if (child == 0) { close_before_it_begins(); _exit(0); }
        CHECK(child > 0 && waitpid(child, &status, 0) == child && status == 0, "child %d: %x", i, status);
    }
    return passed();
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "pipe")) return pipes();
    int to[2], from[2];
    char stopped = 0;
    CHECK(!pipe(to) && !pipe(from));
    pid_t other = fork(), thread = 0;
    if (other == 0) { close(to[1]); stop_it(to[0], from[1]); }
    CHECK(other > 0);
    prctl(PR_SET_PTRACER, other, 0, 0, 0);
    /* Behind this lie huge pages. */
    static char *first[FIRST], *p[ROUNDS][OBJECTS];
    for (int i = 0; i < FIRST; i++) CHECK((first[i] = memset(malloc(8000), 1, 8000)));
    char *large = malloc(200 * MIB);
    CHECK(large);
    for (int i = 0; i < 200 && !(thread = worker()); i++) usleep(10000);
    CHECK(thread, "no worker");
    CHECK(write(to[1], &thread, sizeof thread) == sizeof thread && read(from[0], &stopped, 1) == 1);
    if (!stopped) { puts("skipped: ptrace is refused"); return 0; }
    double most = 0;
    for (int round = 0; round < ROUNDS; round++) {
        double began = now();
        for (int i = 0; i < OBJECTS; i++) { CHECK((p[round][i] = malloc(size_of(i)))); fill(p[round][i], size_of(i), i); }
        for (int i = 0; i < OBJECTS; i++) if (i % KEPT) free(p[round][i]);
        if (now() - began > most) most = now() - began;
        usleep(50000);
    }
    size_t peak = resident();
    CHECK(waitpid(other, NULL, WNOHANG) == 0, "the worker was not stopped all the time");
    CHECK(most < 2, "%.1f s for %d objects", most, OBJECTS);
    close(to[1]);
    CHECK(waitpid(other, NULL, 0) == other);
    malloc_trim(0);
    size_t after = resident();
    CHECK(after + 30 * MIB < peak, "%zu of %zu stay", after, peak);
    for (int round = 0; round < ROUNDS; round++)
        for (int i = 0; i < OBJECTS; i += KEPT) VERIFY(p[round][i], size_of(i), i);
    for (int i = 0; i < FIRST; i++) CHECK(first[i][7999] == 1);
    free(large);
    printf("%zu MiB at most, %zu after; %.2f s for objects at most\n", peak / MIB, after / MIB, most);
    return passed();
}
