/* A tiny malloc over glibc's own, for libraries with one planted fault each. A fault file defines the
 * function with the fault as a macro before it includes this. */
#pragma once
#include <errno.h>
#include <malloc.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);
void __libc_free(void *);

#ifndef MALLOC
#define MALLOC(n) __libc_malloc(n)
#endif
#ifndef CALLOC
#define CALLOC(n) __libc_calloc(1, n)
#endif
#ifndef REALLOC
#define REALLOC(p, n) __libc_realloc(p, n)
#endif
#ifndef MEMALIGN
#define MEMALIGN(a, n) __libc_memalign(a, n)
#endif
#ifndef FREE
#define FREE(p) __libc_free(p)
#endif

void *malloc(size_t n) { return MALLOC(n); }
void free(void *p) { FREE(p); }
void *realloc(void *p, size_t n) { return REALLOC(p, n); }
void *memalign(size_t a, size_t n) { return MEMALIGN(a, n); }
void *aligned_alloc(size_t a, size_t n) { return MEMALIGN(a, n); }

void *calloc(size_t k, size_t n)
{
    size_t all;
    if (__builtin_mul_overflow(k, n, &all)) { errno = ENOMEM; return NULL; }
    return CALLOC(all);
}

int posix_memalign(void **out, size_t a, size_t n)
{
    if (a < sizeof(void *) || a & (a - 1)) return EINVAL;
    int saved = errno;
    void *p = MEMALIGN(a, n);
    errno = saved;
    if (!p) return ENOMEM;
    *out = p;
    return 0;
}
