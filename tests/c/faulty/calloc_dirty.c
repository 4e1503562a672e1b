/* calloc does not zero. */
#define CALLOC(n) __libc_malloc(n)
#include "base.h"
