/* Free memory that is kept, until something says that memory is short. For a window of a minute. */
#pragma once
#include "process.h"
#include "stats.h"

/* What is told of has gone after so many seconds: looks are 40 ms apart, and the machine may be busy. */
#define SOON 0.5

/* So much is free, and stays: the window is a minute. */
static inline void keep_free(size_t bytes)
{
    free(filled(bytes));
    usleep(300000);
    CHECK(resident() > bytes, "%zu MiB resident: given back early", resident() / MIB);
}

/* Seconds until less than half of it is resident, at most so many. */
static inline double gone_within(size_t bytes, double seconds)
{
    double t = now();
    while (resident() > bytes / 2 && now() - t < seconds) usleep(1000);
    return now() - t;
}
