/* A library that registers restartable sequences for the main thread itself, as librseq and tcmalloc do if the C
 * library has not done so. */
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef SYS_rseq
#define SYS_rseq 334
#endif

static char area[32] __attribute__((aligned(32)));

__attribute__((constructor)) static void registers(void)
{
    if (syscall(SYS_rseq, area, sizeof area, 0, 0x12345678) != 0)
        _exit(99);
}
