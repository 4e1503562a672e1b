/* Fault: starts a thread at the first call and keeps it, as an allocator with an eager worker would. */
#include <pthread.h>
#include <unistd.h>
#include "base.h"

static void *sleeper(void *arg) { for (;;) pause(); return arg; }

__attribute__((constructor)) static void eager(void)
{
    pthread_t t;
    pthread_create(&t, NULL, sleeper, NULL);
}
