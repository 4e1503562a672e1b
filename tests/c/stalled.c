/* Tests a worker that does not get to its work:
 *   stalled          the worker is stopped while memory becomes due
 *   stalled pipe     the worker waits for a CPU at its start: files that the program closes meanwhile are closed
 * Another process stops the worker's thread alone. Meanwhile memory becomes due, in parts of huge pages, which threads of
 * the program leave to workers. No call may wait for it; when the worker continues, memory is released. Use a small `limit`,
 * so that slow paths have much to do. */
#include "process.h"
#include <malloc.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>

enum { FIRST = 5000, OBJECTS = 6000, SIZES = 12, ROUNDS = 30, KEPT = 31, CHILDREN = 30, STILL_OPEN = 9 };

static size_t size_of(int i) { return 2000 + 500 * (i * SIZES / OBJECTS); }

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

/* On one CPU, a program that goes on is nearly always before the worker that it has just made. Returns whether the pipe was
 * closed at once. */
static int close_before_it_begins(void)
{
    int ends[2];
    pin(sched_getcpu());
    CHECK(!pipe(ends));
    char *large = malloc(200 * MIB);
    CHECK(large && !close(ends[1]));
    struct pollfd end = { ends[0], POLLIN, 0 };
    int is_closed = poll(&end, 1, 0) == 1 && end.revents == POLLHUP;
    for (int i = 0; i < 500 && !a_worker(); i++) usleep(10000);
    CHECK(a_worker(), "no worker");
    free(large);
    return is_closed;
}

/* A worker that loses its CPU in the middle of its start holds a descriptor for a moment, so a few may. */
static int pipes(void)
{
    int open = 0;
    for (int i = 0; i < CHILDREN; i++) {
        int status;
        pid_t child = fork();
        if (child == 0) _exit(close_before_it_begins() ? 0 : STILL_OPEN);
        CHECK(child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status));
        CHECK(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == STILL_OPEN, "child %d ended with %x", child, status);
        open += WEXITSTATUS(status) == STILL_OPEN;
    }
    CHECK(open <= CHILDREN / 6, "%d of %d pipes are open still", open, CHILDREN);
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
    for (int i = 0; i < FIRST; i++) first[i] = filled(8000);
    char *large = malloc(200 * MIB);
    CHECK(large);
    for (int i = 0; i < 200 && !(thread = a_worker()); i++) usleep(10000);
    CHECK(thread, "no worker");
    CHECK(write(to[1], &thread, sizeof thread) == sizeof thread && read(from[0], &stopped, 1) == 1);
    if (!stopped) return skipped("ptrace is refused");
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
    for (int i = 0; i < FIRST; i++) CHECK(first[i][7999] == 7);
    free(large);
    printf("%zu MiB at most, %zu after; %.2f s for objects at most\n", peak / MIB, after / MIB, most);
    return passed();
}
