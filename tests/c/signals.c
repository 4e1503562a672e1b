/* Interruption of every kind while memory is allocated: signals CASE
 *   storm    timer signals each 200 us on four busy threads      cancel   threads cancelled, joined
 *   step     a parent single-steps a child through malloc/free   usr      threads signal each other */
#include "check.h"
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/ptrace.h>
#include <sys/time.h>

static _Atomic int stop, hits;

static void on_signal(int sig) { (void)sig; atomic_fetch_add(&hits, 1); }

static void *busy(void *arg)
{
    while (!atomic_load(&stop)) churn((uintptr_t)arg, 2000, 200, 13);
    return NULL;
}

static void storm(int peer)
{
    struct sigaction act = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    pthread_t t[4];
    CHECK(!sigaction(SIGALRM, &act, NULL) && !sigaction(SIGPROF, &act, NULL) && !sigaction(SIGUSR1, &act, NULL));
    for (int i = 0; i < 4; i++) CHECK(!pthread_create(&t[i], NULL, busy, (void *)(intptr_t)i));
    if (!peer) {
        struct itimerval each = { { 0, 200 }, { 0, 200 } };
        CHECK(!setitimer(ITIMER_REAL, &each, NULL) && !setitimer(ITIMER_PROF, &each, NULL));
    }
    /* Longer where others want the CPUs. */
    for (double start = now(); now() - start < 1.5 || (hits <= 100 && now() - start < 20);) {
        if (peer) for (int i = 0; i < 4; i++) pthread_kill(t[i], SIGUSR1);
        churn(9, 100, 50, 12);
    }
    stop = 1;
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    CHECK(hits > 100, "%d signals only", hits);
}

static void step(void)
{
    pid_t pid = fork();
    if (pid == 0) {
        ptrace(PTRACE_TRACEME, 0, 0, 0);
        raise(SIGSTOP);
        for (int i = 0; i < 20; i++) {
            char *p = malloc(16 + i % 8 * 40);
            CHECK(p);
            p[0] = 1;
            free(p);
        }
        _exit(0);
    }
    int status;
    unsigned long steps = 0;
    CHECK(waitpid(pid, &status, 0) == pid && WIFSTOPPED(status), "status %x", status);
    while (!WIFEXITED(status)) {
        int sig = WSTOPSIG(status) == SIGTRAP || WSTOPSIG(status) == SIGSTOP ? 0 : WSTOPSIG(status);
        CHECK(ptrace(PTRACE_SINGLESTEP, pid, 0, sig) == 0);
        CHECK(waitpid(pid, &status, 0) == pid && !WIFSIGNALED(status), "status %x", status);
        steps++;
    }
    CHECK(WEXITSTATUS(status) == 0);
    printf("%lu steps\n", steps);
}

static void *deferred(void *arg)
{
    for (;;) {
        churn((uintptr_t)arg, 200, 100, 12);
        pthread_testcancel();
    }
    return NULL;
}

/* Asynchronous cancellation is legal around the calls, not in them. */
static void *async(void *arg)
{
    int old;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
    pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, &old);
    for (;;) {
        churn((uintptr_t)arg, 50, 50, 12);
        pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &old);
        for (volatile int i = 0; i < 100; i++) {}
        pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &old);
    }
    return NULL;
}

static void cancel(void)
{
    for (int r = 0; r < 60; r++) {
        pthread_t t[4];
        void *result;
        for (int i = 0; i < 4; i++)
            CHECK(!pthread_create(&t[i], NULL, i & 1 ? async : deferred, (void *)(intptr_t)(r * 4 + i)));
        usleep(2000);
        for (int i = 0; i < 4; i++) pthread_cancel(t[i]);
        for (int i = 0; i < 4; i++) {
            CHECK(!pthread_join(t[i], &result));
            /* glibc 2.36 leaves the result unset after an asynchronous cancel that was pending. */
            CHECK((i & 1) || result == PTHREAD_CANCELED);
        }
        churn(r, 1000, 100, 14);
    }
}

int main(int argc, char **argv)
{
    const char *c = argc > 1 ? argv[1] : "";
    if (!strcmp(c, "storm")) storm(0);
    else if (!strcmp(c, "usr")) storm(1);
    else if (!strcmp(c, "step")) step();
    else if (!strcmp(c, "cancel")) cancel();
    else CHECK(0, "signals CASE");
    return passed();
}
