/* Fault: a cache of one object per CPU, which a thread uses without a lock during a call. The thread reads its CPU
 * number only at its first call, so the number is stale in vfork children and after migration. */
#include <stddef.h>
#include <sched.h>
static void *cached(size_t n);
static void cache(void *p);
#define MALLOC(n) cached(n)
#define FREE(p) cache(p)
#include "base.h"

static struct { void *volatile p[64]; } slot[1024];
static _Thread_local int cpu = -1;

static void *cached(size_t n)
{
    if (cpu < 0) cpu = sched_getcpu();
    if (n > 0 && n <= 512) {
        void *p = slot[cpu].p[n / 16];
        if (p) {
            sched_yield();
            slot[cpu].p[n / 16] = NULL;
            return p;
        }
    }
    return __libc_malloc(n);
}

static void cache(void *p)
{
    if (!p) return;
    size_t n = malloc_usable_size(p);
    if (cpu >= 0 && n >= 24 && n <= 512 && !slot[cpu].p[n / 16]) slot[cpu].p[n / 16] = p;
    else __libc_free(p);
}
