/* Tests allocation at odd moments: life CASE
 *   ends       constructors, atexit, destructors of the program, of threads and of libraries
 *   dlopen     LIB: dlopen and dlclose of a library that allocates, in a loop, beside threads
 *   mainexit   main ends by pthread_exit, another thread ends the program
 *   setuid     setuid in a threaded program that has freed much (workers may exist)
 *   quit       exit from main while other threads allocate */
#include "check.h"
#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/syscall.h>

static char *early, *late;
static pthread_key_t key;
static _Atomic int stop, destroyed;
static _Thread_local char *mine;

__attribute__((constructor(101))) static void first(void)
{
    early = malloc(1000);
    fill(early, 1000, 1);
    churn(1, 500, 100, 16);
}

__attribute__((destructor)) static void last(void)
{
    if (late) { VERIFY(late, 5000, 2); free(late); }
    VERIFY(early, 1000, 1);
    free(early);
    churn(1, 500, 100, 16);
    if (late && write(1, "destroyed\n", 10) < 0) _exit(5);
}

static void at_exit(void)
{
    late = malloc(5000);
    fill(late, 5000, 2);
    churn(2, 500, 100, 16);
}

/* Runs in the dying thread; allocates again and asks for another round. */
static void on_thread_end(void *p)
{
    VERIFY(p, 300, 3);
    free(p);
    churn(3, 200, 50, 14);
    if (atomic_fetch_add(&destroyed, 1) % 2 == 0) {
        char *again = malloc(300);
        fill(again, 300, 3);
        pthread_setspecific(key, again);
    }
}

static void *short_thread(void *arg)
{
    char *p = malloc(300);
    (void)arg;
    fill(p, 300, 3);
    mine = malloc(77);
    fill(mine, 77, 4);
    pthread_setspecific(key, p);
    churn((uintptr_t)arg, 300, 60, 14);
    VERIFY(mine, 77, 4);
    free(mine);
    return NULL;
}

static void *busy(void *arg)
{
    while (!atomic_load(&stop)) churn((uintptr_t)arg, 2000, 200, 14);
    return NULL;
}

static void *finisher(void *arg)
{
    pthread_join(*(pthread_t *)arg, NULL);
    churn(1, 5000, 300, 16);
    exit(passed());
}

int main(int argc, char **argv)
{
    const char *c = argc > 1 ? argv[1] : "";
    pthread_t t[8];
    if (!strcmp(c, "ends")) {
        atexit(at_exit);
        CHECK(!pthread_key_create(&key, on_thread_end));
        for (int r = 0; r < 100; r++) {
            for (int i = 0; i < 4; i++) CHECK(!pthread_create(&t[i], NULL, short_thread, (void *)(intptr_t)i));
            for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
        }
        CHECK(destroyed >= 400, "%d", destroyed);
    } else if (!strcmp(c, "dlopen")) {
        CHECK(argc > 2);
        for (int i = 0; i < 2; i++) CHECK(!pthread_create(&t[i], NULL, busy, (void *)(intptr_t)i));
        for (int r = 0; r < 300; r++) {
            void *lib = dlopen(argv[2], RTLD_NOW | RTLD_LOCAL);
            CHECK(lib, "%s", dlerror());
            void *(*make)(int) = dlsym(lib, "plugin_make");
            CHECK(make);
            char *p = make(r);
            CHECK(!dlsym(lib, "no_such_symbol") && dlerror());
            CHECK(!dlclose(lib));
            VERIFY(p, 100 + r, r);
            free(p);
        }
        stop = 1;
        for (int i = 0; i < 2; i++) pthread_join(t[i], NULL);
    } else if (!strcmp(c, "mainexit")) {
        static pthread_t self;
        self = pthread_self();
        CHECK(!pthread_create(&t[0], NULL, finisher, &self));
        churn(1, 1000, 100, 16);
        pthread_exit(NULL);
    } else if (!strcmp(c, "setuid")) {
        for (int i = 0; i < 4; i++) CHECK(!pthread_create(&t[i], NULL, busy, (void *)(intptr_t)i));
        for (int r = 0; r < 3; r++) {
            char *p = malloc(200 * MIB);
            memset(p, 1, 200 * MIB);
            free(p);
            usleep(300000);
        }
        uid_t to = geteuid() == 0 ? 65534 : geteuid();
        CHECK(setgid(to == 65534 ? 65534 : getegid()) == 0);
        CHECK(setuid(to) == 0 && geteuid() == to && syscall(SYS_geteuid) == to);
        churn(5, 20000, 500, 16);
        stop = 1;
        for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    } else if (!strcmp(c, "quit")) {
        for (int i = 0; i < 8; i++) CHECK(!pthread_create(&t[i], NULL, busy, (void *)(intptr_t)i));
        usleep(30000);
    } else CHECK(0, "life CASE");
    return passed();
}
