/* Children that skip the fork handlers and end by exit(), beside threads whose large allocations come and go: raw_exit [children]. */
#include "check.h"
#include <pthread.h>
#include <signal.h>

extern pid_t _Fork(void);

static void *volatile latest;

static void *busy(void *arg)
{
    for (;;) {
        void *block = malloc(70 * MIB);
        latest = block;
        free(block);
    }
    return arg;
}

int main(int argc, char **argv)
{
    int children = argc > 1 ? number(argv[1]) : 50;
    pthread_t t;
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&t, NULL, busy, NULL) == 0);
    for (size_t i = 0; i < 40; i++) {
        void *block = malloc(300000 + i * PAGE);
        latest = block;
        free(block);
    }
    for (int i = 0; i < children; i++) {
        pid_t pid = _Fork();
        CHECK(pid >= 0);
        if (pid == 0) exit(0);
        int status, waits = 0;
        pid_t ended;
        while ((ended = waitpid(pid, &status, WNOHANG)) == 0 && ++waits < 20000) usleep(1000);
        if (ended == 0) kill(pid, SIGKILL);
        CHECK(ended == pid && status == 0, "child %d: %s, status %x", i, ended ? "ended" : "hangs", status);
    }
    puts("ok");
    fflush(stdout);
    _exit(0);
}
