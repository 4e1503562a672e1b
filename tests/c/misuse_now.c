/* Makes mistakes that harden=on finds: misuse_now CASE. Prints the bad pointer on stdout first. The mistake must be found before
 * the line "returned". Not found: exit 0. */
#include "check.h"
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>

/* What comes between a mistake and the next call of its kind. */
static void others(size_t n, int count)
{
    static void *p[64];
    for (int i = 0; i < count; i++) {
        free(p[i % 64]);
        p[i % 64] = malloc(n);
        memset(p[i % 64], 1, n);
    }
}

static void returned(void) { puts("returned"); fflush(stdout); }

static void twice_now(size_t n)
{
    void *p = tell(malloc(n));
    free(p);
    others(n, 200);
    free(p);
    returned();
}

/* On one CPU: what it freed waits for what this CPU frees later. */
static void write_freed(size_t n, size_t at)
{
    pin(sched_getcpu());
    volatile char *p = tell(malloc(n));
    free((void *)p);
    p[at]++;
    others(48, 3000);
    others(n, 3000);
    returned();
}

/* The mistake of most cases. */
static void write_to_freed(void)
{
    volatile char *p = tell(malloc(300));
    free((void *)p);
    p[200] = 0;
}

/* The end of string and the like: found by what is called next with the pointer. */
static char *behind(size_t n, size_t at)
{
    volatile char *p = tell(malloc(n));
    p[at] = 0;
    return (char *)p;
}

static pthread_barrier_t together;
static void *frees(void *p) { pthread_barrier_wait(&together); free(p); return NULL; }

static void twice_threads(size_t n)
{
    pthread_t t;
    void *p = tell(malloc(n));
    pthread_barrier_init(&together, NULL, 2);
    CHECK(pthread_create(&t, NULL, frees, p) == 0);
    frees(p);
    pthread_join(t, NULL);
    returned();
}

static volatile char *freed_large(size_t n)
{
    volatile char *q = tell(malloc(n));
    memset((char *)q, 1, n);
    free((void *)q);
    return q;
}

/* It needs a stack of some size, and thread-local storage. */
static void on_abort(int signal)
{
    static _Thread_local int aborts;
    volatile char much[256 * KIB];
    memset((char *)much, signal, sizeof much);
    aborts++;
    if (write(1, "handled\n", 8) < 0) _exit(2);
}

int main(int argc, char **argv)
{
    const char *c = argc > 1 ? argv[1] : "";
    void *p = NULL;
    churn(5, 500, 100, 12);
    if (is(c, "now-twice-16")) twice_now(16);
    else if (is(c, "now-twice-48")) twice_now(48);
    else if (is(c, "now-twice-20000")) twice_now(20000);
    else if (is(c, "now-twice-threads")) twice_threads(300);
    else if (is(c, "now-twice-aligned")) {
        CHECK(posix_memalign(&p, 512, 700) == 0);
        free(tell(p));
        others(1000, 100);
        free(p);
        returned();
    } else if (is(c, "now-realloc-freed")) {
        free(tell(p = malloc(100)));
        if (realloc(p, 110)) returned();
    } else if (is(c, "now-realloc-to-0-twice")) {
        p = tell(malloc(100));
        if (realloc(p, 0)) puts("?");
        others(100, 100);
        if (realloc(p, 0)) puts("?");
        returned();
    } else if (is(c, "now-usable-freed")) {
        free(tell(p = malloc(100)));
        if (malloc_usable_size(p)) returned();
    } else if (is(c, "now-inside-16")) { free(tell((char *)malloc(200) + 16)); returned(); }
    else if (is(c, "now-inside-4096")) { free(tell((char *)malloc(20000) + 4096)); returned(); }
    else if (is(c, "now-sized-one-off")) {
        void (*free_sized)(void *, size_t) = dlsym(RTLD_DEFAULT, "free_sized");
        CHECK(free_sized);
        free_sized(tell(malloc(50)), 49);
        returned();
    } else if (is(c, "now-behind-16")) { free(behind(16, 16)); returned(); }
    else if (is(c, "now-behind-100")) { free(behind(100, 100)); returned(); }
    else if (is(c, "now-behind-4096")) { free(behind(4096, 4096)); returned(); }
    else if (is(c, "now-behind-5000-by-9")) { free(behind(5000, 5008)); returned(); }
    else if (is(c, "now-behind-by-32")) { free(behind(100, 131)); returned(); }
    else if (is(c, "now-before")) { volatile char *q = tell(malloc(100)); q[-32] = 0; free((void *)q); returned(); }
    else if (is(c, "now-behind-realloc")) { if (realloc(behind(100, 100), 3000)) returned(); }
    else if (is(c, "now-write-freed")) write_freed(100, 0);
    else if (is(c, "now-write-freed-inside")) write_freed(1000, 999);
    else if (is(c, "now-write-freed-trim")) {
        write_to_freed();
        malloc_trim(0);
        returned();
    } else if (is(c, "now-behind-large")) { free(behind(300000, 300000)); returned(); }
    else if (is(c, "now-behind-large-realloc")) { if (realloc(behind(5000000, 5000003), 90000000)) returned(); }
    else if (is(c, "now-write-freed-large")) { freed_large(3 * MIB)[2 * MIB] = 1; returned(); }
    else if (is(c, "now-read-freed-large")) { if (!freed_large(300000)[5]) returned(); else returned(); }
    else if (is(c, "now-twice-large-later")) {
        p = tell(malloc(MIB));
        free(p);
        others(MIB, 10);
        free(p);
        returned();
    } else if (is(c, "now-write-freed-elsewhere")) { /* nothing more is freed on the CPU that it was freed on */
        pin(0);
        write_to_freed();
        pin(1);
        for (int i = 0; i < 200; i++) {
            for (int k = 0; k < 10; k++) CHECK(malloc(9000));
            usleep(10000);
        }
        returned();
    } else if (is(c, "now-write-freed-limit")) { /* not enough to push it out, and the quarantine stays in use */
        pin(0);
        malloc_trim(0); /* next to nothing is kept elsewhere */
        write_to_freed();
        void *freed[45];
        for (int i = 0; i < 45; i++) CHECK((freed[i] = malloc(20000)));
        for (int i = 0; i < 45; i++) free(freed[i]);
        for (int i = 0; i < 100; i++) {
            CHECK(malloc(300000));
            free(malloc(16));
            usleep(10000);
        }
        returned();
    } else if (is(c, "now-write-freed-resumed")) { /* there is no worker: by the first free after a pause */
        void *other = malloc(16);
        write_to_freed();
        usleep(800000);
        free(other);
        returned();
    } else if (is(c, "now-write-freed-asleep")) { /* a worker is there, and has nothing to do */
        free(filled(64 * MIB));
        sleep(3);
        write_to_freed();
        sleep(14);
        returned();
    } else if (is(c, "now-write-freed-idle-handled")) { /* no call of the program's finds it */
        signal(SIGABRT, on_abort);
        char *block = filled(64 * MIB);
        write_to_freed();
        free(block);
        for (int i = 0; i < 14; i++) sleep(1);
        returned();
    } else if (is(c, "now-write-freed-idle")) {
        write_to_freed();
        for (int i = 0; i < 12; i++) { /* found by a worker, which this wakes */
            free(filled(64 * MIB));
            usleep(700000);
        }
        returned();
    } else if (is(c, "now-write-freed-end")) {
        write_to_freed();
        return 0; /* found when the program ends */
    } else CHECK(0, "misuse_now CASE");
    return 0;
}
