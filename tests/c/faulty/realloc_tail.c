/* Fault: a realloc that moves an object copies only half of its content. */
#include <stddef.h>
static void *half_copied(void *p, size_t n);
#define REALLOC(p, n) half_copied(p, n)
#include "base.h"

static void *half_copied(void *p, size_t n)
{
    if (!p || !n || n <= 64) return __libc_realloc(p, n);
    void *to = __libc_malloc(n);
    if (!to) return NULL;
    size_t old = malloc_usable_size(p);
    memcpy(to, p, (old < n ? old : n) / 2);
    __libc_free(p);
    return to;
}
