/* Does all kinds of work at once, in a random order chosen by a seed: soak seed=1 threads=4 seconds=3 live=192
 * Threads allocate, zero-allocate, align, resize and free objects from 1 byte to 64 MiB, pass them on, trim, make and
 * drop per-CPU areas, and fork: by fork and _Fork, in children again, with threads of the child's own. Every object
 * carries a pattern; memory from calloc is read to the last byte. Meanwhile the kernel is asked to take pages of freed
 * memory, objects are locked in memory, and a timer interrupts all threads. Short threads come and go, threads move between CPUs, settings
 * change (`changes`), and objects of up to `giant` MiB are made, grown and freed. At the end the figures must be those of the shadow count, and
 * the resident memory that of the start. A part that does not end in time is an error. */
#include "areas.h"
#include "objects.h"
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/time.h>

#ifndef MADV_PAGEOUT
#define MADV_PAGEOUT 21
#endif

enum { THREADS = 16, OWN = 96, BOARD = 64, FREED = 256, AREAS = 24, GIANT_PAGES = 64, CHILD_SECONDS = 90 };
/* Places in `own` behind those of the workers. */
enum { CHILDS_THREAD = THREADS, SHORT_THREAD, PLACES };

struct area { ebb_percpu *at; size_t size; _Atomic uint64_t sum; };

static struct object own[PLACES][OWN];
static struct slot board[BOARD];
static struct { pthread_mutex_t lock; struct area area; } areas[AREAS];
static struct { _Atomic uintptr_t at; _Atomic size_t n; } freed[FREED];
static _Atomic size_t ops, forks, callocs, short_threads, giants;
static _Atomic int stop;
static int threads = 4, has_areas, changes;
static size_t giant_max, keep;
static uint64_t seed0 = 1;

static __typeof__(ebb_release) *release_all;
static __typeof__(ebb_set) *set_key;
static pid_t (*raw_fork)(void);

/* Index of the first byte that is not zero, all of them looked at. */
static ptrdiff_t dirty(const unsigned char *p, size_t n)
{
    size_t i = 0;
    for (; i + 8 <= n; i += 8)
        if (*(const uint64_t *)(p + i)) break;
    for (; i < n; i++)
        if (p[i]) return (ptrdiff_t)i;
    return -1;
}

static size_t pick_size(uint64_t *s)
{
    unsigned r = rnd(s) % 1000;
    return log_size(s, r < 700 ? 13 : r < 880 ? 18 : r < 980 ? 22 : r < 995 ? 24 : 26);
}

static void drop(struct object *o, uint64_t *s)
{
    if (!o->p) return;
    check_object(o);
    if (o->n >= 256 * KIB) {
        unsigned i = rnd(s) % FREED;
        atomic_store(&freed[i].at, (uintptr_t)o->p);
        atomic_store(&freed[i].n, o->n);
    } else if (o->n >= PAGE && rnd(s) % 512 == 0) {
        mlock(o->p, o->n); /* stays locked: mistakes of that kind are common */
    }
    free_object(o);
}

static void make(struct object *o, uint64_t *s)
{
    size_t n = pick_size(s);
    if (!reserve(n)) return;
    void *p = NULL;
    unsigned kind = rnd(s) % 8;
    if (kind < 3) {
        p = calloc(1, n);
        ptrdiff_t at = p ? dirty(p, n) : -1;
        CHECK(at < 0, "calloc %zu: byte %td of %p is %d", n, at, p, ((unsigned char *)p)[at]);
        atomic_fetch_add(&callocs, 1);
    } else if (kind == 3) {
        p = aligned_object((size_t)16 << rnd(s) % (rnd(s) % 16 ? 9 : 19), n);
    } else {
        p = malloc(n);
    }
    CHECK(p, "%zu bytes", n);
    CHECK(malloc_usable_size(p) >= n);
    own_object(o, p, n, rnd(s));
}

static void resize(struct object *o, uint64_t *s)
{
    size_t n = rnd(s) % 2 ? pick_size(s) : rnd(s) % 2 ? o->n + rnd(s) % (o->n + 1) : rnd(s) % o->n + 1;
    if (n > 64 * MIB || !reserve(n)) return;
    resize_object(o, n, rnd(s));
}

static void make_area(struct area *a, uint64_t *s)
{
    a->size = rnd(s) % 16 ? (rnd(s) % 64 + 1) * 8 : (rnd(s) % 4096 + 1) * 8;
    a->sum = 0;
    CHECK((a->at = area_alloc(a->size, 8)), "area of %zu", a->size);
    for (unsigned cpu = 0; cpu < area_cpus(); cpu++) {
        ptrdiff_t at = dirty(area_ptr(a->at, cpu), a->size);
        CHECK(at < 0, "area of %zu: byte %td of CPU %u is dirty", a->size, at, cpu);
    }
    CHECK(area_sum(a->at, 0) == 0 && area_sum(a->at, a->size - 8) == 0);
}

static void drop_area(struct area *a)
{
    CHECK(area_sum(a->at, a->size - 8) == a->sum, "area lost additions");
    for (unsigned cpu = 0; cpu < area_cpus(); cpu++) memset(area_ptr(a->at, cpu), 0xa5, a->size);
    area_free(a->at);
    a->at = NULL;
}

static void use_area(uint64_t *s)
{
    unsigned i = rnd(s) % AREAS;
    if (!has_areas || pthread_mutex_trylock(&areas[i].lock)) return;
    struct area *a = &areas[i].area;
    if (!a->at) make_area(a, s);
    else if (rnd(s) % 3 == 0) drop_area(a);
    else for (int k = 0; k < 20; k++) { area_add(a->at, a->size - 8, k); a->sum += k; }
    pthread_mutex_unlock(&areas[i].lock);
}

static void step(int me, uint64_t *s)
{
    struct object *o = &own[me][rnd(s) % OWN];
    unsigned r = rnd(s) % 100;
    if (!o->p) make(o, s);
    else if (r < 45) drop(o, s);
    else resize(o, s);
}

static void drop_all(int me, uint64_t *s) { for (int i = 0; i < OWN; i++) drop(&own[me][i], s); }

static void *childs_thread(void *arg)
{
    uint64_t s = *(uint64_t *)arg;
    for (int i = 0; i < 300; i++) step(CHILDS_THREAD, &s);
    drop_all(CHILDS_THREAD, &s);
    return NULL;
}

static void forked(int me, uint64_t *s, int depth);

/* What a child finds is what its thread had. */
__attribute__((noreturn)) static void child(int me, uint64_t s, int depth, int raw)
{
    alarm(CHILD_SECONDS);
    pthread_t t;
    for (int i = 0; i < OWN; i++)
        if (own[me][i].p) check_object(&own[me][i]);
    memset(own[CHILDS_THREAD], 0, sizeof own[CHILDS_THREAD]);
    /* Without the handlers libc's own locks may be held for good. */
    int with_thread = !raw && rnd(&s) % 4 == 0 && pthread_create(&t, NULL, childs_thread, &(uint64_t){rnd(&s)}) == 0;
    for (int i = 0; i < 400; i++) {
        step(me, &s);
        if (rnd(&s) % 200 == 0) malloc_trim(0);
    }
    if (has_areas) {
        struct area a[4];
        for (int i = 0; i < 4; i++) make_area(&a[i], &s);
        for (int i = 0; i < 4; i++) { area_add(a[i].at, a[i].size - 8, 7); a[i].sum += 7; drop_area(&a[i]); }
    }
    if (!raw && depth < 2 && rnd(&s) % 3 == 0) forked(me, &s, depth + 1);
    drop_all(me, &s);
    if (with_thread) pthread_join(t, NULL);
    _exit(0);
}

static void forked(int me, uint64_t *s, int depth)
{
    uint64_t seed = rnd(s);
    int raw = release_all && raw_fork && rnd(s) % 4 == 0;
    pid_t pid = raw ? raw_fork() : fork();
    CHECK(pid >= 0);
    if (pid == 0) child(me, seed, depth, raw);
    int status = 0;
    /* Sometimes the parent changes what the child shares. */
    if (depth == 0 && rnd(s) % 2) for (int i = 0; i < 200; i++) step(me, s);
    while (waitpid(pid, &status, 0) < 0) CHECK(errno == EINTR);
    CHECK(status == 0, "child of seed %#lx, by %s, ended with %#x", seed, raw ? "_Fork" : "fork", status);
    atomic_fetch_add(&forks, 1);
}

static void spawned(int by_vfork)
{
    pid_t pid;
    char *args[] = {"/bin/true", NULL}, *env[] = {NULL};
    if (!by_vfork) {
        CHECK(posix_spawn(&pid, args[0], NULL, NULL, args, env) == 0);
    } else if ((pid = vfork()) == 0) {
        execve(args[0], args, env);
        _exit(127);
    }
    must_end_well(pid);
}

/* A page of a large object, of GIANT_PAGES that are far from each other; the last one is at its end. */
static uint64_t *giant_page(char *p, size_t n, int i)
{
    return (uint64_t *)(p + (n - 64) / (GIANT_PAGES - 1) * i / 64 * 64);
}

/* Only some pages are touched: with huge pages these are 128 MiB. */
static void use_giant(uint64_t *s)
{
    size_t n = giant_max / 4 + (rnd(s) % (giant_max / 2) & ~(size_t)63), more = n + (rnd(s) % (giant_max / 4) & ~(size_t)63);
    char *p = rnd(s) % 2 ? calloc(1, n) : malloc(n);
    CHECK(p, "%zu bytes", n);
    for (int i = 0; i < GIANT_PAGES; i++) *giant_page(p, n, i) = n + i;
    p = realloc(p, more);
    CHECK(p, "%zu bytes, grown to %zu", n, more);
    for (int i = 0; i < GIANT_PAGES; i++) CHECK(*giant_page(p, n, i) == n + i, "page %d of %zu, grown to %zu", i, n, more);
    p = realloc(p, n / 2);
    CHECK(p && *giant_page(p, n, 0) == n);
    free(p);
    atomic_fetch_add(&giants, 1);
}

static void *worker(void *arg)
{
    int me = (int)(intptr_t)arg;
    uint64_t s = mix(seed0) + mix(me), idle = 0;
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        unsigned r = rnd(&s) % 20000;
        if (r < 12) forked(me, &s, 0);
        else if (r < 20) malloc_trim(0);
        else if (r < 24 && release_all) release_all();
        else if (r < 30) spawned(r % 2);
        else if (r < 50) drop_all(me, &s);
        else if (r < 60) usleep(rnd(&s) % 30000);
        else if (r < 1500) exchange(&own[me][rnd(&s) % OWN], &board[rnd(&s) % BOARD]);
        else if (r < 2500) use_area(&s);
        else step(me, &s);
        if (++idle % 256 == 0) atomic_fetch_add(&ops, 256);
    }
    return NULL;
}

/* What it leaves, the next one finds. */
static void *short_thread(void *arg)
{
    uint64_t s = *(uint64_t *)arg;
    for (int i = 0; i < 200; i++) {
        step(SHORT_THREAD, &s);
        if (rnd(&s) % 4 == 0) exchange(&own[SHORT_THREAD][rnd(&s) % OWN], &board[rnd(&s) % BOARD]);
    }
    return NULL;
}

static void *threads_come_and_go(void *arg)
{
    uint64_t s = mix(seed0 + 1);
    (void)arg;
    while (!atomic_load(&stop)) {
        pthread_t t;
        uint64_t seed = rnd(&s);
        CHECK(pthread_create(&t, NULL, short_thread, &seed) == 0);
        pthread_join(t, NULL);
        atomic_fetch_add(&short_threads, 1);
        if (giant_max && rnd(&s) % 16 == 0) use_giant(&s);
    }
    return NULL;
}

/* Moves workers to one CPU or lets them go, and changes the keys that can change. */
static void *settings_change(void *arg)
{
    uint64_t s = mix(seed0 + 2);
    pthread_t *workers = arg;
    cpu_set_t all;
    CHECK(sched_getaffinity(0, sizeof all, &all) == 0);
    while (!atomic_load(&stop)) {
        int cpu = rnd(&s) % 2;
        cpu_set_t some = all;
        if (rnd(&s) % 2 && CPU_ISSET(cpu, &all)) {
            CPU_ZERO(&some);
            CPU_SET(cpu, &some);
        }
        CHECK(pthread_setaffinity_np(workers[rnd(&s) % threads], sizeof some, &some) == 0);
        static const char *const values[][2] = {
            {"retain_ms", "0"}, {"retain_ms", "10"}, {"retain_ms", "1000"}, {"limit", "0"}, {"limit", "8m"}, {"limit", "50%"}};
        const char *const *item = values[rnd(&s) % 6];
        if (set_key) CHECK(set_key(item[0], item[1]) == 0, "%s=%s", item[0], item[1]);
        usleep(5000 + rnd(&s) % 20000);
    }
    return NULL;
}

/* Usable bytes of all objects. */
static size_t usable_bytes(void)
{
    size_t sum = 0;
    for (int i = 0; i < PLACES; i++)
        for (int k = 0; k < OWN; k++) sum += malloc_usable_size(own[i][k].p);
    for (int i = 0; i < BOARD; i++) sum += malloc_usable_size(board[i].object.p);
    return sum;
}

/* The program's objects, and what libc and the threads have. With harden=on objects are larger than what is usable. */
static void check_live(size_t before)
{
    if (!has_stats()) return;
    size_t shadow = usable_bytes(), counted = stats().live_bytes;
    CHECK(counted >= shadow, "%zu live bytes, %zu in objects", counted, shadow);
    CHECK(counted <= before + shadow + shadow / 4 + 2 * MIB, "%zu live bytes, %zu in objects", counted, shadow);
}

/* All objects are freed: what is resident is what was resident, the library's own records, and what it says that it cannot release. */
static void check_floor(size_t before)
{
    if (!has_stats()) return;
    struct ebb_stats s;
    size_t floor = 0;
    for (double end = now() + 20; now() < end; usleep(20000)) {
        release();
        s = stats();
        floor = before + s.metadata_bytes + s.live_bytes + s.cached_bytes + s.unsplit_bytes + s.percpu_bytes + 16 * MIB;
        if (resident() <= floor) return;
    }
    CHECK(0, "%zu MiB resident, %zu expected: before %zu, dirty %zu, lazy %zu, pending %zu, in spans %zu, cached %zu, live %zu KiB",
          resident() / MIB, floor / MIB, before / MIB, (size_t)s.dirty_bytes / KIB, (size_t)s.lazy_bytes / KIB,
          (size_t)s.pending_bytes / KIB, (size_t)s.in_spans_bytes / KIB, (size_t)s.cached_bytes / KIB, (size_t)s.live_bytes / KIB);
}

/* Freed memory, and by now others': content stays, and what is lazy goes. */
static void *taker(void *arg)
{
    uint64_t s = seed0;
    (void)arg;
    while (!atomic_load(&stop)) {
        unsigned i = rnd(&s) % FREED;
        uintptr_t at = atomic_load(&freed[i].at) & -PAGE;
        if (at) madvise((void *)at, atomic_load(&freed[i].n) & -PAGE, rnd(&s) % 4 ? MADV_PAGEOUT : MADV_COLD);
        usleep(200);
    }
    return NULL;
}

static _Atomic unsigned ticks;
static void tick(int signal) { (void)signal; atomic_fetch_add(&ticks, 1); }

int main(int argc, char **argv)
{
    double seconds = 3, progress = 0;
    live_max = 192 * MIB;
    for (int i = 1; i < argc; i++) {
        double value = strchr(argv[i], '=') ? atof(strchr(argv[i], '=') + 1) : 1;
        if (!strncmp(argv[i], "seed", 4)) seed0 = value;
        else if (!strncmp(argv[i], "threads", 7)) threads = value;
        else if (!strncmp(argv[i], "seconds", 7)) seconds = value;
        else if (!strncmp(argv[i], "live", 4)) live_max = value * MIB;
        else if (!strncmp(argv[i], "giant", 5)) giant_max = value * MIB;
        else if (!strncmp(argv[i], "changes", 7)) changes = value;
        /* A positive control of the check at the end. */
        else if (!strncmp(argv[i], "keep", 4)) keep = value * MIB;
        else if (!strncmp(argv[i], "progress", 8)) progress = value;
        else CHECK(0, "what is %s?", argv[i]);
    }
    CHECK(threads >= 1 && threads <= THREADS);
    has_areas = find_areas();
    release_all = dlsym(RTLD_DEFAULT, "ebb_release"), raw_fork = dlsym(RTLD_DEFAULT, "_Fork");
    set_key = dlsym(RTLD_DEFAULT, "ebb_set");
    size_t live_before = has_stats() ? stats().live_bytes : 0, resident_before = resident();
    for (int i = 0; i < AREAS; i++) pthread_mutex_init(&areas[i].lock, NULL);
    struct sigaction action = {.sa_handler = tick, .sa_flags = SA_RESTART};
    CHECK(sigaction(SIGPROF, &action, NULL) == 0);
    struct itimerval often = {{0, 1000}, {0, 1000}};
    CHECK(setitimer(ITIMER_PROF, &often, NULL) == 0);
    pthread_t t[THREADS], other[3];
    for (int i = 0; i < threads; i++) CHECK(pthread_create(&t[i], NULL, worker, (void *)(intptr_t)i) == 0);
    CHECK(pthread_create(&other[0], NULL, taker, NULL) == 0);
    CHECK(pthread_create(&other[1], NULL, threads_come_and_go, NULL) == 0);
    if (changes) CHECK(pthread_create(&other[2], NULL, settings_change, t) == 0);
    double begin = now(), next = begin + progress;
    while (now() < begin + seconds) {
        usleep(10000);
        if (!progress || now() < next) continue;
        next += progress;
        fprintf(stderr, "soak: %.0f of %.0f s, %zu operations, %zu forks, %zu threads, %zu MiB live, %zu MiB resident\n", now() - begin,
                seconds, (size_t)ops, (size_t)forks, (size_t)short_threads, (size_t)live / MIB, resident() / MIB);
    }
    atomic_store(&stop, 1);
    for (int i = 0; i < threads; i++) pthread_join(t[i], NULL);
    for (int i = 0; i < 2 + !!changes; i++) pthread_join(other[i], NULL);
    check_live(live_before);
    uint64_t s = seed0;
    for (int i = 0; i < PLACES; i++) drop_all(i, &s);
    for (int i = 0; i < BOARD; i++) drop(&board[i].object, &s);
    for (int i = 0; i < AREAS; i++) if (areas[i].area.at) drop_area(&areas[i].area);
    CHECK(live == 0, "%zu bytes lost", (size_t)live);
    check_live(live_before);
    if (keep) {
        void *kept = mmap(NULL, keep, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(kept != MAP_FAILED && memset(kept, 1, keep));
    }
    check_floor(resident_before);
    printf("%zu operations, %zu forks, %zu callocs, %zu threads, %zu giants\n", (size_t)ops, (size_t)forks, (size_t)callocs,
           (size_t)short_threads, (size_t)giants);
    return passed();
}
