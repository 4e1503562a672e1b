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
 * Blocks until it is done, by this thread and by workers, which have to be there to split huge pages: roughly 0.1
 * microseconds for each page, more on a busy machine.
 * Other threads may allocate and free meanwhile; what they free then may be kept. malloc_trim(0) does the same and
 * returns 1 or 0.
 */
size_t ebb_release(void);

/*
 * Changes a key of EBBTIDE_CONF while the program runs: "retain_ms" or "limit", with a value as the variable has it ("500", "64M", "10%").
 * Memory that is kept beyond the new value goes on the next slow path, or by a worker at once.
 *
 * Returns 0, or -1 with errno EINVAL (no such key, or a value that it does not take) or EOPNOTSUPP (a key that is read once, at the start);
 * then nothing changes. It may make a worker thread. For "limit" it reads /proc and the files of the memory cgroup: some tens of microseconds.
 */
int ebb_set(const char *key, const char *value);

/*
 * Begins to sample allocations for a heap profile, one for `rate` allocated bytes on average; 0: 512 KiB. `ebbtide profile PID` shows the
 * profile. While sampling is on, each malloc takes some nanoseconds more. Any thread may call it; a later call changes the rate.
 *
 * Returns 0, or -1 with errno EINVAL (a rate above 1 TiB) or EIO (no address space for the profile).
 */
int ebb_profile_start(size_t rate);

/* Ends sampling. What was sampled stays in the profile until it is freed. */
void ebb_profile_stop(void);

/*
 * Writes the profile to a file that only the owner may read, in place of what it has had. `ebbtide profile FILE` shows it.
 *
 * Returns 0, or -1 with errno: ENODATA (sampling was never on), EINVAL (no path), EFBIG (above RLIMIT_FSIZE), or that of open(2) or write(2).
 */
int ebb_profile_dump(const char *path);

/*
 * Stores the value of a key that can change: milliseconds, or bytes (UINT64_MAX: no limit; a percentage as the bytes that it is now).
 * Returns 0, or -1 with errno as above.
 */
int ebb_get(const char *key, uint64_t *value);

/*
 * munmap for the program's own mappings that takes microseconds: the range is moved away by mremap, so its addresses are free when the call
 * returns, and workers give its memory back, several beside each other. Ranges below 16 MiB, ranges of several mappings on kernels that move one
 * at a time (before Linux 6.17), and ranges of a process without workers are unmapped before it returns. Pages that files or other processes
 * share are theirs as with munmap. Memory from malloc must not be passed.
 *
 * Returns 0, or -1 with the errno of munmap. Address space of the same size must be free during the call; without, it is munmap.
 */
int ebb_unmap(void *address, size_t length);

/*
 * What the process holds and has given back. The figures are taken one after the other while the program runs: each is right, their sum
 * is as of no one moment. live + cached + in_spans + dirty + lazy + pending + metadata is what the kernel counts, within what was never
 * touched of each part and what huge pages hold beside it. Names end with the unit where it is bytes, nanoseconds or milliseconds.
 */
#define EBB_STATS_VERSION 5

struct ebb_stats {
    uint64_t version;               /* version of this struct and of the statistics page; a later one only adds fields at the end */
    uint64_t live_bytes;            /* in use by the program, rounded up to size classes and pages */
    uint64_t large_bytes;           /* of that, allocations above 256 KiB */
    uint64_t cached_bytes;          /* free objects in per-CPU caches and full batches, spare runs, quarantine (harden=on) */
    uint64_t in_spans_bytes;        /* free objects in spans, and what objects leave over there */
    uint64_t dirty_bytes;           /* free pages that may be resident */
    uint64_t lazy_bytes;            /* free pages that the kernel may take (MADV_FREE) */
    uint64_t pending_bytes;         /* free pages that are being released now */
    uint64_t unsplit_bytes;         /* free, but in huge pages that could not be split at the last attempt */
    uint64_t metadata_bytes;        /* the allocator's own records */
    uint64_t opened_bytes;          /* address space made usable so far */
    uint64_t percpu_bytes;          /* per-CPU data: pages of it that may be resident, on all CPUs */
    uint64_t percpu_sidelined_chunks;/* per-CPU data: chunks that gave pages back and serve when others are full */
    uint64_t percpu_depopulated_bytes;/* per-CPU data: released pages of chunks in use, on all CPUs, since the process began */
    uint64_t lazy_zones;            /* zones whose freed memory becomes lazy first, decided from the next two */
    uint64_t reused_bytes;          /* released lately and wanted again within 10 s; older evidence counts less */
    uint64_t unused_bytes;          /* released lately and not wanted again in that time */
    uint64_t pinned_bytes;          /* of dirty, lazy and per-CPU bytes: free, but in a page of the kernel (16 or 64 KiB) with something in use */
    uint64_t released_bytes;        /* released to the kernel since the process began */
    uint64_t release_calls;         /* system calls that released memory */
    uint64_t refaulted_bytes;       /* empty pages of spans that were released and then needed again */
    uint64_t lazied_bytes;          /* made lazy since the process began */
    uint64_t lazy_reused_bytes;     /* lazy pages that were needed again; the kernel had taken some of them */
    uint64_t lazy_taken_bytes;      /* lazy pages that the kernel had taken when a worker came to release them; a lower bound: it had taken some of the reused ones too */
    uint64_t paid_bytes;            /* released by calls that had taken more fresh memory than a limit had room for */
    uint64_t worker_ns;             /* time that workers spent releasing */
    uint64_t longest_stall_ns;      /* longest time that a thread of the program spent releasing at once */
    uint64_t fallovers;             /* runs of pages that another zone than the CPU's own provided */
    uint64_t exits_detached;        /* ends whose memory a helper released (exit=detached): 0 while the process lives */
    uint64_t exits_fallen_back;     /* ends that should have been detached and were not; without a helper, ends by a signal are not seen */
    uint64_t pressure_events;       /* checks that found memory short */
    uint64_t pressure_state;        /* 0: never checked, 1: calm, 2: short, so nothing is kept for reuse */
    uint64_t pressure_sources;      /* what is watched, a bit each: machine, cgroup limit, PSI, pressure level, event channel, events not wanted */
    uint64_t limit_left_bytes;      /* left of the nearest limit (cgroup or machine) at the last check; 0 with limit_bytes 0: unknown */
    uint64_t limit_bytes;           /* that limit */
    uint64_t lock_acquisitions;     /* acquisitions of all locks (lockstat) */
    uint64_t lock_contended;        /* of these, acquisitions that had to wait */
    uint64_t lock_wait_ns;          /* time spent waiting for locks */
    uint64_t lock_hold_ns;          /* time during which locks were held */
    uint64_t zone_acquisitions;     /* of the lock figures, those of zones: acquisitions */
    uint64_t zone_contended;        /* acquisitions that had to wait */
    uint64_t zone_wait_ns;          /* time spent waiting */
    uint64_t zone_hold_ns;          /* time held */
    uint64_t pid;                   /* the process; 0: unknown */
    uint64_t pid_namespace;         /* its process namespace, by the kernel's number; 0: unknown */
    uint64_t rseq_mode;             /* 1: per-CPU caches by restartable sequences, 0: portable mode under locks */
    uint64_t worked;                /* optional kernel features that were tried and worked, a bit each */
    uint64_t refused;               /* optional kernel features that were tried and refused, a bit each */
    uint64_t helper;                /* the process that releases memory after the end (exit=detached); 0: none */
    uint64_t end_ns;                /* when the end began, if it was in order, on CLOCK_MONOTONIC */
    uint64_t left_ns;               /* when the main thread left the memory at the end, as the helper saw it, on CLOCK_MONOTONIC */
    uint64_t request_done;          /* the number of the last request of an observer that was done; 0: none */
    uint64_t request_result;        /* its result: bytes released, or for a key 0: changed, 1: no such key or value, 2: fixed at the start, 3: failed */
    uint64_t retain_ms;             /* for how long a recent peak keeps freed memory (key retain_ms) */
    uint64_t written_ms;            /* when the page was last written, on CLOCK_MONOTONIC */
    uint64_t rss_bytes;             /* resident, as the kernel counts it; 0: unknown */
    uint64_t rss_without_lazy_bytes;/* of that, what the kernel cannot take at once */
};

/*
 * Fills the first `size` bytes of `*stats`; pass sizeof(struct ebb_stats). A library older than the header fills less,
 * a newer one no more than that. Returns the number of bytes filled, or -1 with errno EINVAL when `stats` is null or
 * `size` is below 8. Walks the per-CPU caches: microseconds, at most a millisecond. For the last two fields the kernel
 * walks the page tables, which can take milliseconds for each GiB: pass offsetof(struct ebb_stats, rss_bytes) to do without.
 */
int ebb_stats(struct ebb_stats *stats, size_t size);

/*
 * Data with a copy for each CPU: counters, reference counts, statistics that many threads write to without sharing a
 * cache line. All copies of an area lie at the same place of their CPU's part of the memory, and pages without an area
 * go back to the kernel, also while others of the same part are in use (EBBTIDE_CONF=dev=percpu_depopulate:off: not those).
 *
 * An ebb_percpu * is a number, not an address: it must not be dereferenced or computed with.
 */
typedef struct ebb_percpu ebb_percpu;

/*
 * An area of `size` bytes (1 to 262,144) at a multiple of `align` (a power of two, 1 to 4,096; areas of a multiple of 8
 * bytes are always aligned to 8), zero on every CPU. NULL with errno EINVAL for other arguments, ENOMEM without memory:
 * what is returned has its memory on all CPUs already.
 */
ebb_percpu *ebb_percpu_alloc(size_t size, size_t align);

/*
 * The same without waiting: it serves from pages that have their memory already, makes no system call and waits for no
 * lock. A signal handler may call it. NULL with errno ENOMEM if those pages have no space or another thread is in the
 * way: ebb_percpu_alloc may still succeed. Pages of freed areas serve first; some of them always stay. If another
 * thread waits for this call meanwhile, the call wakes it.
 */
ebb_percpu *ebb_percpu_alloc_nowait(size_t size, size_t align);

/*
 * Frees an area on all CPUs. Nobody may be using it. NULL is ignored; what is no area, or no longer one, ends the process
 * with a line on stderr. errno is kept.
 */
void ebb_percpu_free(ebb_percpu *area);

/*
 * The copy for `cpu`, from 0 to ebb_percpu_cpus() - 1, until the area is freed; another number ends the process. Which
 * thread writes there is the caller's affair: a thread can be moved to another CPU at any moment. ebb_percpu_add_u64
 * does not mind.
 */
void *ebb_percpu_ptr(ebb_percpu *area, unsigned cpu);

/* The number of copies of each area: CPUs that the kernel may ever bring up, or more (percpu_units). Constant. */
unsigned ebb_percpu_cpus(void);

/*
 * Adds `value`, wrapping, to the 64-bit word at `offset` of the copy for the CPU that this thread is on: a restartable
 * section without an atomic instruction where the C library registers them (glibc 2.35), else an atomic addition.
 * Nothing is lost, whoever else adds and wherever threads move. A thread without registration adds to a copy of its
 * own kind, which no ebb_percpu_ptr shows. `offset` is a multiple of 8, and the word lies in the area, or the process
 * is ended.
 */
void ebb_percpu_add_u64(ebb_percpu *area, size_t offset, uint64_t value);

/*
 * The sum, wrapping, of the words at `offset` over all copies: all that was added before the call, and what of the
 * additions beside it has been seen. Words that the program itself wrote through ebb_percpu_ptr count too.
 */
uint64_t ebb_percpu_sum_u64(ebb_percpu *area, size_t offset);

/* Bytes are those of all CPUs together. Once the library has a worker, it has an area of 64 bytes itself. */
struct ebb_percpu_stats {
    size_t chunks;            /* parts of the memory in use, 262,144 bytes for each CPU */
    size_t sidelined_chunks;  /* of those, ones that gave pages back and serve when others are full */
    size_t allocated_bytes;   /* in areas, rounded up to 8 bytes */
    size_t populated_bytes;   /* in pages that may be resident */
    size_t depopulated_bytes; /* given back so far */
};

/*
 * Fills the first `size` bytes of `*stats`; pass sizeof(struct ebb_percpu_stats). Returns the number of bytes filled, or
 * -1 with errno EINVAL when `stats` is null or `size` is below sizeof(size_t). Later versions add fields at the end.
 */
int ebb_percpu_stats(struct ebb_percpu_stats *stats, size_t size);

/*
 * The version of the library, "MAJOR.MINOR.PATCH", in ASCII. The text is static: it is never null, never changes, and
 * is not to be freed.
 */
const char *ebb_version(void);

#ifdef __cplusplus
}
#endif

/*
 * C++17, if EBBTIDE_PMR is defined before this header: a memory resource for the containers of std::pmr. It takes memory from malloc, whichever
 * library that is, so it needs no library of its own. Alignments up to 16 cost no more than malloc; std::pmr::new_delete_resource may ask
 * for each object by its alignment. Any thread may use it at any time. All of them are equal: one frees what another one allocated.
 *
 *     std::pmr::vector<int> numbers(ebbtide::resource());
 */
#if defined(EBBTIDE_PMR) && defined(__cplusplus) && __cplusplus >= 201703L
#if __has_include(<memory_resource>)
#include <cstdlib>
#include <memory_resource>
#include <new>

namespace ebbtide {

class memory_resource : public std::pmr::memory_resource {
    void *do_allocate(std::size_t size, std::size_t align) override
    {
        void *memory = nullptr;
        if (align <= 16)
            memory = std::malloc(size ? size : 1);
        else if (::posix_memalign(&memory, align, size ? size : 1))
            memory = nullptr;
        if (!memory)
            throw std::bad_alloc();
        return memory;
    }

    void do_deallocate(void *memory, std::size_t, std::size_t) override { std::free(memory); }

    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override
    {
        return dynamic_cast<const memory_resource *>(&other) != nullptr;
    }
};

/* One of them, which is never destroyed. */
inline memory_resource *resource()
{
    alignas(memory_resource) static unsigned char place[sizeof(memory_resource)];
    static memory_resource *one = ::new (place) memory_resource;
    return one;
}

} // namespace ebbtide
#endif
#endif

#endif
