/* Fault: the program ends when memory runs out. */
#include <stdlib.h>
#include <stddef.h>
static void *or_die(void *p) { if (!p) abort(); return p; }
#define MALLOC(n) or_die(__libc_malloc(n))
#include "base.h"
