/* Preloaded before the library, pretends that the kernel has pages of 32 KiB. There is no such kernel. */
#include <sys/auxv.h>

unsigned long getauxval(unsigned long kind)
{
    return kind == AT_PAGESZ ? 32 << 10 : 0;
}
