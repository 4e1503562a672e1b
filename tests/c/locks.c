/* What ebb_stats and malloc_stats say: of locks (locks on|off), of populated frames (locks populated|faulted). */
#include "check.h"
#include "../../include/ebbtide.h"
#include <dlfcn.h>
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

/* A growing class: what is populated is zero, and stays the program's. */
static void populate(int wanted)
{
    enum { N = 20000 };
    int (*stats)(struct ebb_stats *, size_t) = dlsym(RTLD_DEFAULT, "ebb_stats");
    CHECK(stats);
    static char *held[N];
    for (int i = 0; i < N; i++) {
        held[i] = calloc(1, 2048);
        CHECK(held[i]);
        for (int at = 0; at < 2048; at += 64) CHECK(!held[i][at]);
        memset(held[i], i, 2048);
    }
    struct ebb_stats now;
    CHECK(stats(&now, sizeof now) == sizeof now);
    CHECK(wanted ? now.populated_bytes > 20 * MIB : !now.populated_bytes, "%zu bytes", (size_t)now.populated_bytes);
    for (int i = 0; i < N; i++) { CHECK(held[i][77] == (char)i); free(held[i]); }
}

int main(int argc, char **argv)
{
    int on = argc > 1 && !strcmp(argv[1], "on");
    if (argc > 1 && !strcmp(argv[1], "populated")) return populate(1), passed();
    if (argc > 1 && !strcmp(argv[1], "faulted")) return populate(0), passed();
    int (*stats)(struct ebb_stats *, size_t) = dlsym(RTLD_DEFAULT, "ebb_stats");
    CHECK(stats);
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) CHECK(!pthread_create(&threads[i], NULL, take_and_give, NULL));
    for (int i = 0; i < 4; i++) CHECK(!pthread_join(threads[i], NULL));
    struct ebb_stats now;
    CHECK(stats(&now, sizeof now) == sizeof now);
    if (on) {
        CHECK(now.lock_acquisitions > 100 && now.lock_hold_ns > 0);
        CHECK(now.lock_contended < now.lock_acquisitions);
    } else {
        CHECK(!now.lock_acquisitions && !now.lock_contended && !now.lock_wait_ns && !now.lock_hold_ns);
    }
    malloc_stats();
    return passed();
}
