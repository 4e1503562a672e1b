/* Fault: a wrong helper. It is made for every program that has allocated much, it keeps the program's descriptors and
 * memory for CLING_MS (1 s), and the program's parent can wait for its end. */
#include <stddef.h>
static void *counted(size_t n);
#define MALLOC(n) counted(n)
#include "base.h"
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static char stack[64 << 10] __attribute__((aligned(64)));
static size_t taken;
static pid_t maker;

/* Shares the program's thread-local storage: no call that sets errno. */
static int cling(void *milliseconds)
{
    long ms = (long)milliseconds;
    struct timespec all = {ms / 1000, ms % 1000 * 1000000L};
    prctl(PR_SET_NAME, "ebbtide/exit");
    syscall(SYS_nanosleep, &all, NULL);
    syscall(SYS_exit_group, 0);
    return 0;
}

static void *counted(size_t n)
{
    if (__atomic_add_fetch(&taken, n, __ATOMIC_RELAXED) > (24 << 20) && maker != getpid()) {
        const char *given = getenv("CLING_MS");
        maker = getpid();
        clone(cling, stack + sizeof stack, CLONE_VM | SIGCHLD, (void *)(given ? atol(given) : 1000L));
    }
    return __libc_malloc(n);
}
