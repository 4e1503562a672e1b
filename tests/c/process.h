/* What /proc says of processes and their threads. Nothing here allocates: the memory of the process that asks is looked at. */
#pragma once
#include "check.h"
#include <dirent.h>
#include <sys/syscall.h>

/* Reads the beginning of a file, whose name is formatted: the length. An empty text if there is no such file. */
__attribute__((format(printf, 3, 4))) static inline ssize_t read_text(char *text, size_t most, const char *format, ...)
{
    char path[512];
    va_list args;
    va_start(args, format);
    vsnprintf(path, sizeof path, format, args);
    va_end(args);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? 0 : read(fd, text, most - 1);
    if (fd >= 0) close(fd);
    if (n < 0) n = 0;
    text[n] = 0;
    return n;
}

/* The number at the beginning of a file. */
static inline uint64_t number_in(const char *path)
{
    char text[64];
    CHECK(read_text(text, sizeof text, "%s", path) > 0, "%s", path);
    return strtoull(text, NULL, 10);
}

/* The number after a name at the beginning of a line; -1: no line has that name. */
static inline long number_after(const char *text, const char *name)
{
    size_t n = strlen(name);
    for (const char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
        if (!strncmp(line, name, n)) return atol(line + n);
    return -1;
}

/* The entries of a directory that are numbers: processes, or the threads of one. */
struct numbers {
    int dir;
    long at, end;
    char entries[4096] __attribute__((aligned(8)));
};

static inline struct numbers numbers_of(const char *path)
{
    return (struct numbers){.dir = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC)};
}

/* The next number. 0: there is no other one, and the directory is closed. */
static inline int next_number(struct numbers *all)
{
    while (all->dir >= 0) {
        if (all->at >= all->end) {
            all->at = 0;
            all->end = syscall(SYS_getdents64, all->dir, all->entries, sizeof all->entries);
            if (all->end > 0) continue;
            close(all->dir);
            all->dir = -1;
            break;
        }
        struct dirent64 *entry = (void *)(all->entries + all->at);
        all->at += entry->d_reclen;
        if (atoi(entry->d_name) > 0) return atoi(entry->d_name);
    }
    return 0;
}

/* Threads of this process. */
static inline int threads(void)
{
    int count = 0;
    struct numbers all = numbers_of("/proc/self/task");
    CHECK(all.dir >= 0);
    while (next_number(&all)) count++;
    return count;
}

/* The next of this process's threads that is a worker, by its name; 0: there is no other one. */
static inline int next_worker(struct numbers *all)
{
    char name[32];
    for (int thread; (thread = next_number(all));) {
        read_text(name, sizeof name, "/proc/self/task/%d/comm", thread);
        if (!strncmp(name, "ebbtide/", 8)) return thread;
    }
    return 0;
}

static inline int workers(void)
{
    int count = 0;
    struct numbers all = numbers_of("/proc/self/task");
    while (next_worker(&all)) count++;
    return count;
}

/* The number of some worker; 0: there is none. */
static inline int a_worker(void)
{
    int last = 0;
    struct numbers all = numbers_of("/proc/self/task");
    for (int worker; (worker = next_worker(&all));) last = worker;
    return last;
}

/* A number of a thread's status; -1: there is none, or no such thread. */
static inline long status_of(int thread, const char *name)
{
    char text[4096];
    read_text(text, sizeof text, "/proc/self/task/%d/status", thread);
    return number_after(text, name);
}

/* How often the threads of a process have gone to sleep, with or without its main thread. */
static inline long sleeps(pid_t pid, int with_main)
{
    char path[64], text[4096];
    long all = 0;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    struct numbers threads = numbers_of(path);
    CHECK(threads.dir >= 0);
    for (int thread; (thread = next_number(&threads));) {
        if (thread == pid && !with_main) continue;
        read_text(text, sizeof text, "/proc/%d/task/%d/status", (int)pid, thread);
        long n = number_after(text, "voluntary_ctxt_switches:");
        if (n > 0) all += n;
    }
    return all;
}

/* Bytes of this process's memory of a kind, by its name in smaps_rollup. */
static inline size_t rollup(const char *name)
{
    char text[4096];
    CHECK(read_text(text, sizeof text, "/proc/self/smaps_rollup") > 0);
    long kib = number_after(text, name);
    return kib > 0 ? kib * KIB : 0;
}
