/* Fault: sometimes an object that is in use is handed out again. Nothing is ever freed, so that libc's own
 * checks find nothing. */
#include <stddef.h>
static void *twice(size_t n);
#define MALLOC(n) twice(n)
#define FREE(p) ((void)(p))
#include "base.h"

static void *twice(size_t n)
{
    static _Thread_local void *last;
    static _Thread_local size_t last_n;
    static _Thread_local unsigned count;
    if (n <= last_n && ++count % 509 == 0) return last;
    if (n > 4096) return __libc_malloc(n);
    last_n = n;
    return last = __libc_malloc(n);
}
