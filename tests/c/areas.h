/* Per-CPU data by name. Another library has none. */
#pragma once
#include "stats.h"

static __typeof__(ebb_percpu_alloc) *area_alloc;
static __typeof__(ebb_percpu_free) *area_free;
static __typeof__(ebb_percpu_ptr) *area_ptr;
static __typeof__(ebb_percpu_cpus) *area_cpus;
static __typeof__(ebb_percpu_add_u64) *area_add;
static __typeof__(ebb_percpu_sum_u64) *area_sum;

/* Looks the functions up; whether they are there. */
static inline int find_areas(void)
{
    area_alloc = (__typeof__(area_alloc))dlsym(RTLD_DEFAULT, "ebb_percpu_alloc");
    area_free = (__typeof__(area_free))dlsym(RTLD_DEFAULT, "ebb_percpu_free");
    area_ptr = (__typeof__(area_ptr))dlsym(RTLD_DEFAULT, "ebb_percpu_ptr");
    area_cpus = (__typeof__(area_cpus))dlsym(RTLD_DEFAULT, "ebb_percpu_cpus");
    area_add = (__typeof__(area_add))dlsym(RTLD_DEFAULT, "ebb_percpu_add_u64");
    area_sum = (__typeof__(area_sum))dlsym(RTLD_DEFAULT, "ebb_percpu_sum_u64");
    return area_alloc && area_free && area_ptr && area_cpus && area_add && area_sum;
}
