/*
 * ebbtide.h: what libebbtide.so offers beyond the C library's malloc interface.
 *
 * malloc, free, calloc, realloc, reallocarray, posix_memalign, aligned_alloc, memalign, valloc, pvalloc,
 * malloc_usable_size, malloc_trim, mallinfo, mallinfo2, malloc_info, malloc_stats and mallopt are declared where
 * the C library declares them (<stdlib.h>, <malloc.h>); free_sized and free_aligned_sized (C23) where it is new
 * enough to declare them. libebbtide.so defines all of them.
 *
 * Use it by LD_PRELOAD, by `ebbtide run PROGRAM`, or by linking with -lebbtide (see `pkg-config --libs ebbtide`).
 * A program that shall also run without the library looks the names below up at run time:
 *
 *     size_t (*release)(void) = (size_t (*)(void))dlsym(RTLD_DEFAULT, "ebb_release");
 *     if (release)
 *         release();
 *
 * All functions here are safe to call from any thread at any time, keep no reference to the caller's memory, and
 * leave errno alone where nothing else is said. They must not be called from a signal handler, nor between vfork and exec.
 */
#ifndef EBBTIDE_H
#define EBBTIDE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Gives all free memory of the process back to the kernel now, also what is kept for reuse: the per-CPU caches are
 * drained, then every free frame and every empty page of half-used spans is released. Nothing that is allocated moves
 * or changes. Without this call most of it goes about a second after it was freed, beside the program: not the last few
 * MiB, nor what a busy program keeps in its caches.
 *
 * Returns the bytes given back, a multiple of 4,096; 0 when there was nothing to give or the kernel refused. It has no
 * errors. Pages that hold a live byte stay, and so does a huge page that the kernel cannot split. The number is an upper
 * bound: memory is given back in blocks of up to 2 MiB, and pages of a block that had no memory behind them count too; so
 * does what workers give back during the call.
 *
 * Blocks until it is done: roughly 0.1 microseconds for each page, shared with the workers, more on a busy machine.
 * Other threads may allocate and free meanwhile; what they free then may be kept. malloc_trim(0) does the same and
 * returns 1 or 0.
 */
size_t ebb_release(void);

/*
 * Where the process's memory is, in bytes. The parts are taken one after the other while the program runs: each is
 * right, their sum is as of no one moment. live + cached + in_spans + dirty + lazy + pending + metadata is what the
 * kernel counts, within what was never touched of each part and what huge pages hold beside it.
 */
struct ebb_stats {
    uint64_t version;          /* 1; a later version only adds fields at the end */
    uint64_t live_bytes;       /* with the program, rounded up to size classes and pages */
    uint64_t large_bytes;      /* of that, allocations above 256 KiB */
    uint64_t cached_bytes;     /* free objects in per-CPU caches and full batches */
    uint64_t in_spans_bytes;   /* free objects in spans */
    uint64_t dirty_bytes;      /* free pages that may be resident */
    uint64_t lazy_bytes;       /* free pages that the kernel may take */
    uint64_t pending_bytes;    /* on their way to the kernel now */
    uint64_t held_bytes;       /* free, but in huge pages that could not be split at the last try */
    uint64_t metadata_bytes;   /* the allocator's own records */
    uint64_t opened_bytes;     /* address space made usable so far */
    uint64_t released_bytes;   /* given back since the process began */
    uint64_t refaulted_bytes;  /* empty pages of spans that were given back and then needed again */
    uint64_t worker_ns;        /* nanoseconds that workers spent giving back */
    uint64_t longest_stall_ns; /* the longest that a thread of the program gave back in one go */
    uint64_t lazied_bytes;     /* made lazy (MADV_FREE) since the process began */
    uint64_t lazy_zones;       /* zones whose freed memory becomes lazy first, by what was measured: */
    uint64_t reused_bytes;     /* given up lately and wanted again within 10 s; older evidence counts less */
    uint64_t unused_bytes;     /* given up lately and not wanted again in that time */
    uint64_t rss_bytes;        /* resident, as the kernel counts it; 0: it does not tell */
    uint64_t rss_without_lazy_bytes; /* of that, what the kernel cannot take at once */
};

/*
 * Fills the first `size` bytes of `*stats`; pass sizeof(struct ebb_stats). A library older than the header fills less,
 * a newer one no more than that. Returns the number of bytes filled, or -1 with errno EINVAL when `stats` is null or
 * `size` is below 8. Walks the per-CPU caches: microseconds, at most a millisecond. For the last two fields the kernel
 * walks the page tables, which can take milliseconds for each GiB: pass offsetof(struct ebb_stats, rss_bytes) to do without.
 */
int ebb_stats(struct ebb_stats *stats, size_t size);

/*
 * The version of the library, "MAJOR.MINOR.PATCH", in ASCII. The text is static: it is never null, never changes, and
 * is not to be freed.
 */
const char *ebb_version(void);

#ifdef __cplusplus
}
#endif

#endif
