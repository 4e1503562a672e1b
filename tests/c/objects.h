/* Objects that threads make, resize, pass on and drop, with their content checked each time. */
#pragma once
#include "check.h"
#include <malloc.h>
#include <stdatomic.h>

struct object { unsigned char *p; size_t n; uint64_t seed; };

/* A place on the board over which threads exchange objects. */
struct slot { atomic_flag lock; struct object object; };

/* Bytes of all objects, and how many there may be. */
static _Atomic size_t live;
static size_t live_max = 256 * MIB;

static inline int reserve(size_t n)
{
    if (atomic_fetch_add(&live, n) + n <= live_max) return 1;
    atomic_fetch_sub(&live, n);
    return 0;
}

static inline void check_object(const struct object *o) { VERIFY(o->p, o->n, o->seed); }

/* Takes possession of fresh memory. */
static inline void own_object(struct object *o, void *p, size_t n, uint64_t seed)
{
    *o = (struct object){p, n, seed};
    fill(p, n, seed);
}

/* Frees an object that was checked; errno must stay. */
static inline void free_object(struct object *o)
{
    errno = 77;
    free(o->p);
    CHECK(errno == 77, "free changed errno");
    atomic_fetch_sub(&live, o->n);
    o->p = NULL;
}

/* Resizes to a size that was reserved. */
static inline void resize_object(struct object *o, size_t n, uint64_t seed)
{
    check_object(o);
    unsigned char *p = realloc(o->p, n);
    CHECK(p, "realloc %zu", n);
    ptrdiff_t at = wrong(p, o->n, n < o->n ? n : o->n, o->seed);
    CHECK(at < 0, "realloc %zu -> %zu of %p lost byte %td", o->n, n, (void *)p, at);
    atomic_fetch_sub(&live, o->n);
    own_object(o, p, n, seed);
}

static inline void *aligned_object(size_t a, size_t n)
{
    void *p = NULL;
    CHECK(posix_memalign(&p, a, n) == 0, "align %zu size %zu", a, n);
    CHECK((uintptr_t)p % a == 0, "%p align %zu size %zu", p, a, n);
    return p;
}

/* Exchanges an object with that of the slot, unless another thread is there. */
static inline void exchange(struct object *o, struct slot *slot)
{
    if (atomic_flag_test_and_set_explicit(&slot->lock, memory_order_acquire)) return;
    struct object other = slot->object;
    slot->object = *o;
    *o = other;
    atomic_flag_clear_explicit(&slot->lock, memory_order_release);
}
