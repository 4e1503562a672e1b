/* Threads that fork at once, beside fork handlers that were registered before the library's own, lock a mutex, and
   allocate: forkers [threads] [forks]. */
#include "check.h"
#include <pthread.h>

static pthread_mutex_t of_handlers = PTHREAD_MUTEX_INITIALIZER;
static int ready, forks;
static void *kept[64];

static void prepare(void)
{
    if (!ready) return;
    pthread_mutex_lock(&of_handlers);
    for (int i = 0; i < 64; i++) {
        free(kept[i]);
        CHECK((kept[i] = malloc(300000 + i * 100)));
    }
    for (int i = 0; i < 200; i++) free(malloc(5000 + i * 40));
}

static void unlock(void)
{
    if (ready) pthread_mutex_unlock(&of_handlers);
}

static void register_early(void) { pthread_atfork(prepare, unlock, unlock); }
__attribute__((section(".preinit_array"), used)) static void (*early)(void) = register_early;

static void *forker(void *arg)
{
    for (int i = 0; i < forks; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            unsigned char *object = malloc(100);
            fill(object, 100, i);
            VERIFY(object, 100, i);
            free(object);
            _exit(0);
        }
        must_end_well(pid);
    }
    return arg;
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? number(argv[1]) : 2;
    forks = argc > 2 ? number(argv[2]) : 100;
    pthread_t t[16];
    free(malloc(10));
    ready = 1;
    for (int i = 0; i < threads; i++) CHECK(pthread_create(&t[i], NULL, forker, NULL) == 0);
    for (int i = 0; i < threads; i++) CHECK(pthread_join(t[i], NULL) == 0);
    return passed();
}
