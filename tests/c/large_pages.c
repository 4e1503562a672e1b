/* Preloaded before the library, pretends that the kernel has pages of 64 KiB. There is no such kernel for x86-64. */
#include <sys/auxv.h>

unsigned long getauxval(unsigned long kind)
{
    return kind == AT_PAGESZ ? 64 << 10 : 0;
}
