/* malloc_usable_size promises 64 bytes more than there are. */
#include "base.h"

size_t malloc_usable_size(void *p)
{
    return p ? ((((size_t *)p)[-1] & ~(size_t)7) - 8) + 64 : 0;
}
