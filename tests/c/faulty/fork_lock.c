/* Fault: one lock around everything, and no fork handler takes or resets it. */
#include <pthread.h>
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
#define LOCKED(call) ({ pthread_mutex_lock(&lock); __typeof__(call) r_ = call; pthread_mutex_unlock(&lock); r_; })
#define MALLOC(n) LOCKED(__libc_malloc(n))
#define CALLOC(n) LOCKED(__libc_calloc(1, n))
#define FREE(p) (pthread_mutex_lock(&lock), __libc_free(p), (void)pthread_mutex_unlock(&lock))
#include "base.h"
