/* Making a worker. */
#pragma once
#include "process.h"

/* So much that a worker is wanted. */
static inline void use_much(void) { free(filled(200 * MIB)); }

static inline void make_worker(void)
{
    use_much();
    for (double start = now(); !workers(); usleep(1000)) CHECK(now() - start < 5, "no worker");
}
