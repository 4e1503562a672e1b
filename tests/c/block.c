/* Workers in a program with much static thread-local storage: from glibc 2.41 on `struct rseq` lies below all of it, far
 * from the thread pointer. A worker finds it in memory of its own, and there that nothing is registered.
 * TLS_KIB: how much. With EMULATE the program does what such a C library does, on any one: it registers the first
 * bytes of its own storage, and says so (run with GLIBC_TUNABLES=glibc.pthread.rseq=0, linked with -rdynamic). */
#include "check.h"
#include <sys/mman.h>
#include <sys/syscall.h>

#ifndef TLS_KIB
#define TLS_KIB 64
#endif

struct area { uint32_t start, cpu; uint64_t section; uint32_t flags, node, id, pad; } __attribute__((aligned(32)));
static __thread struct { struct area area; char wide[TLS_KIB << 10]; } own __attribute__((aligned(32))) =
    { .area = { 0, -1, 0, 0, 0, 0, 0 } };

#ifdef EMULATE
enum { KNOWN = 1 };
ptrdiff_t __rseq_offset;
unsigned __rseq_size, __rseq_flags;
static void early(int argc, char **argv, char **envp)
{
    (void)argc, (void)argv, (void)envp;
    __rseq_offset = (char *)&own.area - (char *)__builtin_thread_pointer();
    if (!syscall(SYS_rseq, &own.area, 32, 0, 0x53053053)) __rseq_size = 32;
}
__attribute__((section(".preinit_array"), used)) static void (*first)(int, char **, char **) = early;
#else
extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned __rseq_size __attribute__((weak));
#define KNOWN (&__rseq_offset && &__rseq_size)
#endif

/* Looks through all memory that could be a worker's for its thread block, which begins with its own address. */
static int look(void)
{
    static char text[1 << 20];
    int blocks = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    CHECK(f);
    text[fread(text, 1, sizeof text - 1, f)] = 0;
    fclose(f);
    for (char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        uintptr_t from, to;
        unsigned long inode;
        char access[8];
        if (sscanf(line, "%lx-%lx %7s %*x %*s %lu", &from, &to, access, &inode) != 4) continue;
        if (access[0] != 'r' || access[1] != 'w' || inode || to - from > 8 * MIB) continue;
        for (uintptr_t at = from; at < to; at += PAGE) {
            if (*(volatile uintptr_t *)at != at) continue;
            uintptr_t area = at + __rseq_offset;
            CHECK(area >= from && area + 32 <= to, "area %#lx of the block %#lx is not in %#lx-%#lx", area, at, from, to);
            int cpu = ((volatile struct area *)area)->cpu;
            CHECK(cpu == -1, "block %#lx: CPU %d at %td", at, cpu, __rseq_offset);
            blocks++;
        }
    }
    return blocks;
}

int main(void)
{
    if (!KNOWN || !__rseq_size) return skipped("nothing is registered");
    memset(own.wide, 1, sizeof own.wide);
    for (int round = 0; round < 3; round++) {
        free(memset(malloc(200 * MIB), 1, 200 * MIB));
        for (int i = 0; i < 30; i++) { churn(round * 100 + i, 300, 100, 16); usleep(20000); }
        CHECK(look() > 0, "no worker");
    }
    for (size_t i = 0; i < sizeof own.wide; i++) CHECK(own.wide[i] == 1, "byte %zu", i);
    printf("offset %td\n", __rseq_offset);
    return passed();
}
