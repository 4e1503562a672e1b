/* What ebb_stats and malloc_stats say of locks (locks on|off). */
#include "stats.h"
#include <malloc.h>
#include <pthread.h>

static void *take_and_give(void *arg)
{
    enum { N = 2000 };
    static _Thread_local char *held[N];
    for (int round = 0; round < 20; round++) {
        for (int i = 0; i < N; i++) { held[i] = malloc(4096); CHECK(held[i]); held[i][0] = (char)i; }
        for (int i = 0; i < N; i++) { CHECK(held[i][0] == (char)i); free(held[i]); }
    }
    return arg;
}

int main(int argc, char **argv)
{
    CHECK(argc > 1 && (is(argv[1], "on") || is(argv[1], "off")), "locks on|off");
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) CHECK(!pthread_create(&threads[i], NULL, take_and_give, NULL));
    for (int i = 0; i < 4; i++) CHECK(!pthread_join(threads[i], NULL));
    struct ebb_stats now = stats();
    if (is(argv[1], "on")) {
        CHECK(now.lock_acquisitions > 100 && now.lock_hold_ns > 0);
        CHECK(now.lock_contended < now.lock_acquisitions);
    } else {
        CHECK(!now.lock_acquisitions && !now.lock_contended && !now.lock_wait_ns && !now.lock_hold_ns);
    }
    malloc_stats();
    return passed();
}
