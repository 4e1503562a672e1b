/* What the library says and does when asked by name. These programs do not link it. */
#pragma once
#include "../../include/ebbtide.h"
#include "check.h"
#include <dlfcn.h>

/* Whether the library has figures: another one has none. */
static inline int has_stats(void) { return dlsym(RTLD_DEFAULT, "ebb_stats") != NULL; }

static inline struct ebb_stats stats_of(size_t size)
{
    static __typeof__(ebb_stats) *get;
    struct ebb_stats s = {0};
    if (!get) get = (__typeof__(get))dlsym(RTLD_DEFAULT, "ebb_stats");
    CHECK(get && get(&s, size) == (int)size);
    return s;
}

/* The figures without the last two, for which the kernel walks all memory. */
static inline struct ebb_stats stats(void) { return stats_of(offsetof(struct ebb_stats, rss_bytes)); }

static inline struct ebb_stats all_stats(void) { return stats_of(sizeof(struct ebb_stats)); }

/* Gives back all that can be; bytes that were. */
static inline size_t release(void)
{
    static __typeof__(ebb_release) *all;
    if (!all) all = (__typeof__(all))dlsym(RTLD_DEFAULT, "ebb_release");
    CHECK(all);
    return all();
}
