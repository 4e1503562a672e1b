/* Fault: memalign ignores the alignment above 16. */
#define MEMALIGN(a, n) __libc_malloc(n)
#include "base.h"
