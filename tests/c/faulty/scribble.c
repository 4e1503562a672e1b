/* Fault: from time to time, 8 bytes in the middle of an older object in use are overwritten. */
#include <stddef.h>
static void *scribble(size_t n);
#define MALLOC(n) scribble(n)
#include "base.h"

static void *scribble(size_t n)
{
    static _Thread_local char *held;
    static _Thread_local unsigned count;
    char *p = __libc_malloc(n);
    if (held && ++count % 1009 == 0) { memset(held + 8, 0x42, 8); held = NULL; }
    if (!held && p && n >= 32 && n <= 512) held = p;
    return p;
}
