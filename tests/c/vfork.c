/* vfork children that allocate: they share the parent's memory and TLS but not its rseq registration.
 *   vfork threads rounds [pin=same|other|none] [hop]
 * `threads` other threads allocate meanwhile. Every object of everybody stands in one table of owned
 * addresses, so that one handed out twice is seen at once. `hop`: the child moves to another CPU. */
#include "check.h"
#include <pthread.h>
#include <stdatomic.h>

enum { BUCKETS = 1 << 14, DEPTH = 30, KEPT = 200 };
struct bucket { atomic_flag lock; int n; void *p[DEPTH]; };
static struct bucket table[BUCKETS];
static _Atomic int stop;
static int ncpu;

static struct bucket *locked(void *p)
{
    struct bucket *b = &table[mix((uintptr_t)p >> 4) % BUCKETS];
    while (atomic_flag_test_and_set_explicit(&b->lock, memory_order_acquire)) sched_yield();
    return b;
}

static void own(void *p)
{
    struct bucket *b = locked(p);
    for (int i = 0; i < b->n; i++) CHECK(b->p[i] != p, "%p handed out twice", p);
    CHECK(b->n < DEPTH);
    b->p[b->n++] = p;
    atomic_flag_clear_explicit(&b->lock, memory_order_release);
}

static void disown(void *p)
{
    struct bucket *b = locked(p);
    int i = 0;
    while (i < b->n && b->p[i] != p) i++;
    CHECK(i < b->n, "%p is not owned", p);
    b->p[i] = b->p[--b->n];
    atomic_flag_clear_explicit(&b->lock, memory_order_release);
}

/* Sizes are few, so that all parties meet in the same size classes. */
static size_t size_of(uint64_t *s)
{
    static const size_t sizes[] = { 16, 24, 48, 64, 128, 200, 512, 1024, 4000, 9000 };
    return rnd(s) % 200 ? sizes[rnd(s) % 10] : 300000;
}

__attribute__((noinline)) static void pairs(uint64_t seed, int count)
{
    unsigned char *p[KEPT] = {0};
    size_t n[KEPT];
    uint64_t s = seed;
    for (int k = 0; k < count; k++) {
        int i = rnd(&s) % KEPT;
        if (p[i]) { VERIFY(p[i], n[i], seed + i); disown(p[i]); free(p[i]); }
        n[i] = size_of(&s);
        CHECK((p[i] = malloc(n[i])));
        own(p[i]);
        fill(p[i], n[i], seed + i);
    }
    for (int i = 0; i < KEPT; i++)
        if (p[i]) { VERIFY(p[i], n[i], seed + i); disown(p[i]); free(p[i]); }
}

static int busy_cpu = -1;

static void *busy(void *arg)
{
    uint64_t s = (uintptr_t)arg;
    if (busy_cpu >= 0) try_pin(busy_cpu % ncpu);
    while (!atomic_load(&stop)) pairs(rnd(&s), 500);
    return NULL;
}

__attribute__((noinline)) static void child(int r, int hop)
{
    for (int k = 0; k < 4; k++) {
        if (hop) try_pin((r + k) % ncpu);
        pairs(1000000 + r * 4 + k, 300);
    }
}

int main(int argc, char **argv)
{
    int threads = argc > 1 ? number(argv[1]) : 2, rounds = argc > 2 ? number(argv[2]) : 200, hop = 0;
    ncpu = sysconf(_SC_NPROCESSORS_ONLN);
    for (int i = 3; i < argc; i++) {
        if (is(argv[i], "pin=same")) { try_pin(0); busy_cpu = 0; }
        else if (is(argv[i], "pin=other")) { try_pin(0); busy_cpu = 1; }
        else if (is(argv[i], "hop")) hop = 1;
        else CHECK(0, "what is %s?", argv[i]);
    }
    pthread_t t[32];
    unsigned char *kept[KEPT];
    uint64_t s = 3;
    size_t n[KEPT];
    for (int i = 0; i < KEPT; i++) {
        n[i] = size_of(&s);
        CHECK((kept[i] = malloc(n[i])));
        own(kept[i]);
        fill(kept[i], n[i], i);
    }
    for (int i = 0; i < threads; i++)
        CHECK(pthread_create(&t[i], NULL, busy, (void *)(intptr_t)(i + 1)) == 0);
    for (int r = 0; r < rounds; r++) {
        pairs(r, 50);
        pid_t pid = vfork();
        if (pid == 0) { child(r, hop); _exit(0); }
        must_end_well(pid);
        pairs(r, 50);
        for (int i = 0; i < KEPT; i++) VERIFY(kept[i], n[i], i);
    }
    stop = 1;
    for (int i = 0; i < threads; i++) pthread_join(t[i], NULL);
    for (int i = 0; i < KEPT; i++) { VERIFY(kept[i], n[i], i); disown(kept[i]); free(kept[i]); }
    for (int i = 0; i < BUCKETS; i++) CHECK(table[i].n == 0);
    return passed();
}
