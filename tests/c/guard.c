/* Mistakes with guarded objects, one each: the program tells the object's address, makes the mistake, and says "returned".
 *   guard CASE [SIZE]     the object has SIZE bytes, 100 without it
 *   guard sound           all functions on guarded objects, without a mistake
 *   guard full            more live objects than there are slots, then fewer
 *   guard sampled         writes to a freed object, until a guarded one is met
 *   guard fork            children of threads use and free their parent's objects
 *   guard vfork           a vfork child allocates, frees, and changes its own action of SIGSEGV
 *   guard filter          a filter refuses mprotect from some moment on */
#include "check.h"
#include "filter.h"
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>

static volatile unsigned char sink;

__attribute__((noinline)) static unsigned char *allocate(size_t size) { return malloc(size); }
__attribute__((noinline)) static void release(void *p) { free(p); }

static void *release_there(void *p)
{
    prctl(PR_SET_NAME, "releaser");
    release(p);
    return NULL;
}

static void in_thread(void *(*work)(void *), void *with)
{
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, work, with) && !pthread_join(thread, NULL));
}

static void make(const char *mistake, size_t size)
{
    /* One at each edge: an object is at the start or at the end of its pages by chance. */
    unsigned char *p = NULL;
    int at_end = is(mistake, "behind-far") || is(mistake, "behind-read");
    int at_start = is(mistake, "before") || is(mistake, "before-read");
    for (int tries = 0; tries < 100; tries++) {
        p = allocate(size);
        int is_at_start = (uintptr_t)p % PAGE == 0;
        if (!(at_end && is_at_start) && !(at_start && !is_at_start)) break;
    }
    memset(p, 7, size);
    tell(p);
    if (is(mistake, "after-write")) { release(p); p[16] = 1; }
    else if (is(mistake, "after-read")) { release(p); sink = p[size - 1]; }
    else if (is(mistake, "after-thread")) { in_thread(release_there, p); sink = p[0]; }
    else if (is(mistake, "behind-far")) { for (size_t i = size;; i++) p[i] = 1; }
    else if (is(mistake, "behind-read")) { for (size_t i = size;; i++) sink = p[i]; }
    else if (is(mistake, "behind-near")) { p[size] = 1; release(p); }
    else if (is(mistake, "before")) p[-8] = 1;
    else if (is(mistake, "before-read")) sink = p[-1];
    else if (is(mistake, "before-near")) {
        while ((uintptr_t)p % PAGE == 0) p = allocate(size);
        tell(p);
        p[-1] = 1;
        release(p);
    }
    else if (is(mistake, "twice")) { release(p); release(p); }
    else if (is(mistake, "twice-thread")) { in_thread(release_there, p); release(p); }
    else if (is(mistake, "inside")) release(p + 16);
    else if (is(mistake, "realloc-freed")) { release(p); sink = *(unsigned char *)realloc(p, 200); }
    else if (is(mistake, "realloc-inside")) sink = *(unsigned char *)realloc(p + 32, 200);
    else if (is(mistake, "usable-freed")) { release(p); sink = malloc_usable_size(p); }
    else if (is(mistake, "near-freed")) { release(p); release(p + 16); }
    else CHECK(0, "unknown case %s", mistake);
    puts("returned");
}

static void sound(void)
{
    uint64_t random = 5;
    for (int round = 0; round < 2000; round++) {
        size_t size = rnd(&random) % (round % 8 ? 5000 : 3 * MIB / 2), align = (size_t)16 << rnd(&random) % 9;
        unsigned char *p;
        switch (round % 4) {
        case 0: p = malloc(size); break;
        case 1: p = calloc(size, 1); CHECK(not_zero(p, size) < 0); break;
        case 2: p = aligned_alloc(align, size); CHECK((uintptr_t)p % align == 0); break;
        default: p = realloc(malloc(size / 2), size);
        }
        if (!p) { CHECK(!size); continue; }
        CHECK((uintptr_t)p % 16 == 0);
        size_t usable = malloc_usable_size(p);
        CHECK(usable >= size);
        fill(p, usable, round);
        VERIFY(p, usable, round);
        size_t other = rnd(&random) % 9000 + 1;
        fill(p, size, round);
        p = realloc(p, other);
        ptrdiff_t at = wrong(p, size, other, round);
        CHECK(at < 0, "round %d: byte %td of %zu, then %zu", round, at, size, other);
        free(p);
    }
    free(NULL);
    void *none = malloc(0), *other = malloc(0);
    CHECK(none && other && none != other);
    free(none);
    free(other);
}

static void *filled_with(size_t size, int byte)
{
    void *p = malloc(size);
    CHECK(p);
    return memset(p, byte, size);
}

/* An ordinary object for 24 bytes has 32. */
static int is_guarded(void *p) { return malloc_usable_size(p) == 24; }

static void full(void)
{
    enum { MANY = 20000 };
    static void *all[MANY];
    int guarded[2] = {0, 0};
    for (int turn = 0; turn < 2; turn++) {
        for (int i = 0; i < MANY; i++) all[i] = filled_with(24, turn);
        for (int i = 0; i < MANY; i++) guarded[turn] += is_guarded(all[i]);
        for (int i = 0; i < MANY; i++) free(all[i]);
    }
    CHECK(guarded[0] > 100 && guarded[0] < MANY / 2, "%d", guarded[0]);
    CHECK(guarded[1] == guarded[0], "%d %d", guarded[0], guarded[1]);
    /* Large ones: 64 of 1 MiB are less than the bound with guard=all. */
    void *large[64];
    for (int i = 0; i < 64; i++) large[i] = filled_with(MIB, 1);
    for (int i = 0; i < 64; i++) free(large[i]);
}

static void sampled(void)
{
    for (int i = 0; i < 10000000; i++) {
        volatile unsigned char *p = allocate(50);
        release((void *)p);
        p[1] = 1;
    }
}

static void *forks(void *objects)
{
    void **mine = objects;
    for (int i = 0; i < 20; i++) {
        for (int j = 0; j < 50; j++) mine[j] = filled_with(j * 40, j);
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) {
            for (int j = 0; j < 50; j++) {
                unsigned char *p = mine[j];
                for (int k = 0; k < j * 40; k++) CHECK(p[k] == j);
                free(p);
                mine[j] = filled_with(300, 1);
            }
            _exit(0);
        }
        for (int j = 0; j < 50; j++) free(mine[j]);
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0, "%x", status);
    }
    return NULL;
}

static void fork_in_threads(void)
{
    static void *objects[4][50];
    pthread_t threads[4];
    for (int i = 0; i < 4; i++) CHECK(!pthread_create(&threads[i], NULL, forks, objects[i]));
    for (int i = 0; i < 4; i++) CHECK(!pthread_join(threads[i], NULL));
}

static void on_segv(int number) { (void)number; _exit(41); }

static void in_vfork(void)
{
    struct sigaction action = {.sa_handler = on_segv}, seen;
    CHECK(!sigaction(SIGSEGV, &action, NULL));
    void *before = malloc(40);
    pid_t child = vfork();
    CHECK(child >= 0);
    if (!child) {
        struct sigaction none = {.sa_handler = SIG_DFL};
        sigaction(SIGSEGV, &none, NULL);
        void *p = malloc(100);
        if (!p) _exit(1);
        memset(p, 1, 100);
        free(p);
        free(before);
        _exit(sigaction(SIGSEGV, NULL, &seen) || seen.sa_handler != SIG_DFL);
    }
    int status;
    CHECK(waitpid(child, &status, 0) == child && status == 0, "%x", status);
    CHECK(!sigaction(SIGSEGV, NULL, &seen) && seen.sa_handler == on_segv);
    void *after = malloc(40);
    CHECK(after);
    free(after);
}

static void filtered(void)
{
    /* Ordinary memory, which the heap cannot get afterwards. */
    enum { MANY = 20000 };
    static void *all[MANY];
    for (int i = 0; i < MANY; i++) all[i] = filled_with(100, 1);
    for (int i = 1; i < MANY; i++) free(all[i]);
    void *before = all[0];
    promise();
    answer_call(SYS_mprotect, SECCOMP_RET_ERRNO | EPERM);
    for (int i = 0; i < 1000; i++) free(filled_with(100, 1));
    free(before);
}

int main(int count, char **args)
{
    CHECK(count >= 2);
    if (is(args[1], "sound")) sound();
    else if (is(args[1], "full")) full();
    else if (is(args[1], "sampled")) sampled();
    else if (is(args[1], "fork")) fork_in_threads();
    else if (is(args[1], "vfork")) in_vfork();
    else if (is(args[1], "filter")) filtered();
    else return make(args[1], count > 2 ? number(args[2]) : 100), 0;
    return passed();
}
