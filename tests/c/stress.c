/* Multi-threaded stress with content checks.
 *   stress seed=1 threads=8 seconds=2 live=256 gens=4 migrate trim back
 * Every object carries a pattern of its seed, verified before it is freed, resized or passed on.
 * Objects cross threads over a board of slots and over rings from each thread to the next. `gens`
 * generations of threads come and go. `migrate` moves threads between CPUs; `trim` calls malloc_trim
 * now and then; `back` demands most memory back at the end. Live bytes stay below `live` MiB. */
#include "objects.h"
#include <pthread.h>
#include <sys/syscall.h>

enum { THREADS = 64, OWN = 256, BOARD = 1024, RING = 512 };

struct ring { _Atomic unsigned head, tail; struct object at[RING]; };

static struct slot board[BOARD];
static struct ring rings[THREADS];
static struct object own[THREADS][OWN];
static _Atomic pid_t tids[THREADS];
static _Atomic size_t ops;
static _Atomic int stop_generation, stop_all;
static uint64_t seed0 = 1;
static int threads = 8, generations = 4, migrate, trim, back;
static double seconds = 2;

static void drop(struct object *o)
{
    if (!o->p) return;
    check_object(o);
    memset(o->p, 0xdd, o->n < 64 ? o->n : 64);
    free_object(o);
}

static size_t pick_size(uint64_t *s)
{
    uint64_t r = rnd(s) % 1000;
    return log_size(s, r < 900 ? 12 : r < 990 ? 17 : r < 999 ? 22 : 26);
}

static void make(struct object *o, uint64_t *s)
{
    size_t n = pick_size(s);
    if (!reserve(n)) return;
    void *p = NULL;
    switch (rnd(s) % 8) {
    case 0: case 1:
        p = calloc(1, n);
        if (p) { ptrdiff_t at = not_zero(p, n); CHECK(at < 0, "calloc %zu: byte %td of %p dirty", n, at, p); }
        break;
    case 2:
        p = aligned_object((size_t)16 << rnd(s) % 13, n);
        break;
    default:
        p = malloc(n);
    }
    CHECK(p, "%zu bytes", n);
    CHECK((uintptr_t)p % (n < 16 ? 8 : 16) == 0, "%p of %zu", p, n);
    if (rnd(s) % 16 == 0) CHECK(malloc_usable_size(p) >= n);
    own_object(o, p, n, rnd(s));
}

static void resize(struct object *o, uint64_t *s)
{
    size_t n = pick_size(s);
    if (n > 16 * o->n + 4096 && rnd(s) % 4) n = o->n * 2;
    if (!reserve(n)) return;
    resize_object(o, n, rnd(s));
}

static int push(struct ring *r, struct object *o)
{
    unsigned tail = atomic_load(&r->tail);
    if (tail - atomic_load(&r->head) == RING) return 0;
    r->at[tail % RING] = *o;
    o->p = NULL;
    atomic_store(&r->tail, tail + 1);
    return 1;
}

static int pop(struct ring *r, struct object *o)
{
    unsigned head = atomic_load(&r->head);
    if (head == atomic_load(&r->tail)) return 0;
    *o = r->at[head % RING];
    atomic_store(&r->head, head + 1);
    return 1;
}

static void *worker(void *arg)
{
    int me = (int)(intptr_t)arg & 0xff, generation = (int)(intptr_t)arg >> 8;
    uint64_t s = mix(seed0) + mix(me * 1000 + generation);
    struct ring *in = &rings[me], *out = &rings[(me + 1) % threads];
    size_t done = 0;
    atomic_store(&tids[me], (pid_t)syscall(SYS_gettid));
    while (!atomic_load_explicit(&stop_generation, memory_order_relaxed)) {
        struct object *o = &own[me][rnd(&s) % OWN], taken;
        unsigned r = rnd(&s) % 100;
        if (!o->p) make(o, &s);
        else if (r < 45) drop(o);
        else if (r < 55) resize(o, &s);
        else if (r < 75) exchange(o, &board[rnd(&s) % BOARD]);
        else if (r < 90) push(out, o);
        for (int i = 0; i < 2 && pop(in, &taken); i++) drop(&taken);
        if (trim && rnd(&s) % 20000 == 0) malloc_trim(0);
        done++;
    }
    atomic_fetch_add(&ops, done);
    atomic_store(&tids[me], 0);
    return NULL;
}

static void *mover(void *arg)
{
    uint64_t s = seed0;
    cpu_set_t all, one;
    (void)arg;
    CHECK(sched_getaffinity(0, sizeof all, &all) == 0);
    while (!atomic_load(&stop_all)) {
        pid_t tid = atomic_load(&tids[rnd(&s) % threads]);
        int cpu = rnd(&s) % 64;
        if (tid && CPU_ISSET(cpu, &all)) {
            CPU_ZERO(&one);
            CPU_SET(cpu, &one);
            sched_setaffinity(tid, sizeof one, &one);
            usleep(50);
        }
    }
    return NULL;
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        double value = strchr(argv[i], '=') ? atof(strchr(argv[i], '=') + 1) : 1;
        if (!strncmp(argv[i], "seed", 4)) seed0 = value;
        else if (!strncmp(argv[i], "threads", 7)) threads = value;
        else if (!strncmp(argv[i], "seconds", 7)) seconds = value;
        else if (!strncmp(argv[i], "live", 4)) live_max = value * MIB;
        else if (!strncmp(argv[i], "gens", 4)) generations = value;
        else if (!strcmp(argv[i], "migrate")) migrate = 1;
        else if (!strcmp(argv[i], "trim")) trim = 1;
        else if (!strcmp(argv[i], "back")) back = 1;
        else CHECK(0, "what is %s?", argv[i]);
    }
    CHECK(threads >= 1 && threads <= THREADS && generations >= 1);
    pthread_t t[THREADS], m;
    size_t base = resident();
    if (migrate) CHECK(pthread_create(&m, NULL, mover, NULL) == 0);
    for (int g = 0; g < generations; g++) {
        atomic_store(&stop_generation, 0);
        for (int i = 0; i < threads; i++)
            CHECK(pthread_create(&t[i], NULL, worker, (void *)(intptr_t)(i | g << 8)) == 0);
        usleep(seconds / generations * 1e6);
        atomic_store(&stop_generation, 1);
        for (int i = 0; i < threads; i++) pthread_join(t[i], NULL);
    }
    atomic_store(&stop_all, 1);
    if (migrate) pthread_join(m, NULL);
    struct object o;
    for (int i = 0; i < threads; i++) {
        for (int k = 0; k < OWN; k++) drop(&own[i][k]);
        while (pop(&rings[i], &o)) drop(&o);
    }
    for (int i = 0; i < BOARD; i++) drop(&board[i].object);
    CHECK(live == 0, "%zu bytes lost", (size_t)live);
    malloc_trim(0);
    usleep(100000);
    size_t end = resident();
    CHECK(!back || end < base + 48 * MIB, "RSS %zu at the start, %zu when all is freed", base, end);
    printf("%zu operations\n", (size_t)ops);
    return passed();
}
