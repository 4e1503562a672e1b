/* Fault: calloc does not zero the memory. */
#define CALLOC(n) __libc_malloc(n)
#include "base.h"
