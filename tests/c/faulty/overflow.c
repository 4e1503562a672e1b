/* Fault: calloc and malloc do not notice that a size is too large. */
#define MALLOC(n) __libc_malloc((n) & 0xffffffff)
#include "base.h"
