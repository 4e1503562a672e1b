/* Runs a thread made by a raw clone, with a thread block that libc does not know.
 *   own_block marked SECONDS     the block says that the thread has no registration, as docs/limits.md advises; where
 *                                libc registers nothing, it is a block with the initial TLS of all libraries
 *   own_block zeroed SECONDS     the block does not say so: it reads as CPU 0, and objects get two owners */
#include "check.h"
#include <dlfcn.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>

enum { HALF = 1 << 20, OBJECTS = 32, WORDS = 12 };
extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned __rseq_size __attribute__((weak));
static _Atomic int stop, gone;
static _Atomic long rounds[2];

static void work(int who)
{
    volatile unsigned long *o[OBJECTS];
    for (int i = 0; i < OBJECTS; i++) {
        CHECK((o[i] = malloc(WORDS * 8)));
        for (int k = 0; k < WORDS; k++) o[i][k] = who * 1000 + i;
    }
    for (int i = 0; i < OBJECTS; i++) {
        for (int k = 0; k < WORDS; k++)
            CHECK(o[i][k] == (unsigned long)(who * 1000 + i), "an object has two owners");
        free((void *)o[i]);
    }
    rounds[who]++;
}

static int raw(void *arg)
{
    (void)arg;
    while (!stop) work(1);
    gone = 1;
    syscall(SYS_exit, 0);
    return 0;
}

static char *map(void)
{
    char *p = mmap(NULL, 2 * HALF, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

int main(int argc, char **argv)
{
    CHECK(argc > 2);
    if (sysconf(_SC_NPROCESSORS_ONLN) < 2) return skipped("one CPU");
    char *block = map() + HALF, *stack = map();
    int libc_registers = &__rseq_offset && &__rseq_size && __rseq_size;
    if (!strcmp(argv[1], "marked") && !libc_registers) {
        void *(*make)(void *) = (void *(*)(void *))dlsym(RTLD_DEFAULT, "_dl_allocate_tls");
        if (!make) return skipped("no _dl_allocate_tls in this libc");
        CHECK((block = make(NULL)));
    }
    ((void **)block)[0] = block; /* the thread pointer itself, where the ABI wants it */
    ((void **)block)[2] = block;
    if (!strcmp(argv[1], "marked") && libc_registers) {
        CHECK(__rseq_offset > -HALF && __rseq_offset < HALF - 64);
        *(int *)(block + __rseq_offset + 4) = -1; /* RSEQ_CPU_ID_UNINITIALIZED in cpu_id */
    }
    for (int i = 0; i < 100; i++) work(0);
    pin(1);
    int flags = CLONE_VM | CLONE_FS | CLONE_FILES | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM | CLONE_SETTLS;
    CHECK(clone(raw, stack + 2 * HALF, flags, NULL, NULL, block, NULL) > 0);
    pin(0);
    for (double end = now() + atof(argv[2]); now() < end;)
        for (int i = 0; i < 100; i++) work(0);
    stop = 1;
    while (!gone) sched_yield();
    CHECK(rounds[0] && rounds[1]);
    return passed();
}
