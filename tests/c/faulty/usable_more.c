/* Fault: malloc_usable_size returns 64 bytes more than the object has. */
#include "base.h"

size_t malloc_usable_size(void *p)
{
    return p ? ((((size_t *)p)[-1] & ~(size_t)7) - 8) + 64 : 0;
}
