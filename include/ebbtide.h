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
 * leave errno alone. They must not be called from a signal handler, nor between vfork and exec.
 */
#ifndef EBBTIDE_H
#define EBBTIDE_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Gives all free memory of the process back to the kernel now, also what is kept for reuse: the per-CPU caches are
 * drained, then every free frame and every empty page of half-used spans is released. Nothing that is allocated moves
 * or changes. Without this call the same happens about a second after memory was freed, beside the program, but for
 * what a busy program keeps in its caches and about a MiB.
 *
 * Returns the bytes given back, a multiple of 4,096; 0 when there was nothing to give or the kernel refused. It has no
 * errors. Pages that hold a live byte stay. The number is an upper bound: memory is given back in blocks of up to 2 MiB,
 * and pages of a block that had no memory behind them count too; so does what workers give back
 * during the call. A huge page that the kernel cannot split stays.
 *
 * Blocks until it is done: roughly 0.1 microseconds for each page, shared with the workers, more on a busy machine.
 * Other threads may allocate and free meanwhile; what they free then may be kept. malloc_trim(0) does the same and returns 1 or 0.
 */
size_t ebb_release(void);

/*
 * The version of the library, "MAJOR.MINOR.PATCH", in ASCII. The text is static: it is never null, never changes, and
 * is not to be freed.
 */
const char *ebb_version(void);

#ifdef __cplusplus
}
#endif

#endif
