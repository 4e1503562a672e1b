/* Shared by the test programs: checks that end the program, content patterns, random numbers.
 * A program that passes prints "ok" on stdout and returns 0. It prints "skipped: REASON" for what it cannot check.
 * A failed check prints one FAIL line on stderr and exits with 1. Only `filled`, `churn` and `work_until_back` allocate. */
#pragma once
#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)
/* A page of the kernel. */
#define PAGE ((size_t)getpagesize())
#define CHECK(cond, ...) \
    do { if (!(cond)) check_failed(__FILE__, __LINE__, #cond, " " __VA_ARGS__); } while (0)

__attribute__((noreturn, unused, format(printf, 4, 5)))
static void check_failed(const char *file, int line, const char *cond, const char *fmt, ...)
{
    char text[512];
    int saved = errno, n;
    n = snprintf(text, sizeof text, "FAIL %s:%d: %s (errno %d):", file, line, cond, saved);
    va_list args;
    va_start(args, fmt);
    n += vsnprintf(text + n, sizeof text - n - 1, fmt, args);
    va_end(args);
    if (n > (int)sizeof text - 2) n = sizeof text - 2;
    text[n++] = '\n';
    if (write(2, text, n) < 0) _exit(3);
    _exit(1);
}

__attribute__((unused)) static int passed(void) { puts("ok"); fflush(stdout); return 0; }

/* The program's status when it cannot check what it was asked to. */
static inline int skipped(const char *reason) { printf("skipped: %s\n", reason); fflush(stdout); return 0; }

static inline int is(const char *a, const char *b) { return !strcmp(a, b); }

/* A number of the command line. A misspelt argument must not pass for "nothing to do". */
static inline double number(const char *text)
{
    char *end;
    double value = strtod(text, &end);
    CHECK(end != text && !*end, "%s is no number", text);
    return value;
}

/* Prints a pointer that is misused next: the test looks for it in what the library says. */
static inline void *tell(void *p) { printf("%p\n", p); fflush(stdout); return p; }

static inline uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

static inline uint64_t rnd(uint64_t *state) { return mix(*state += 0x632be59bd9b4e019u); }

static inline double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec + t.tv_nsec * 1e-9;
}

/* Byte i of a pattern depends on seed and i alone, so that it survives realloc. */
static inline unsigned char pattern(uint64_t seed, size_t i)
{
    return (seed * 0x9e3779b1u + i * 0x85ebca6bu + (i >> 8)) >> 13;
}

/* Which bytes are looked at: all up to 8 KiB; above that the first and last 512 and 16 a page. */
static inline size_t pattern_next(size_t i, size_t n)
{
    if (n <= 2 * PAGE || i < 512 || i >= n - 512 || i % PAGE < 15) return i + 1;
    size_t next = (i | (PAGE - 1)) + 1;
    return next < n - 512 ? next : n - 512;
}

__attribute__((unused)) static void fill(void *p, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i = pattern_next(i, n)) ((unsigned char *)p)[i] = pattern(seed, i);
}

/* Index of the first wrong byte among the first `upto` of an object filled with size n, or -1. */
__attribute__((unused)) static ptrdiff_t wrong(const void *p, size_t n, size_t upto, uint64_t seed)
{
    for (size_t i = 0; i < n && i < upto; i = pattern_next(i, n))
        if (((const unsigned char *)p)[i] != pattern(seed, i)) return (ptrdiff_t)i;
    return -1;
}

#define VERIFY(p, n, seed) \
    do { \
        ptrdiff_t at_ = wrong(p, n, n, seed); \
        CHECK(at_ < 0, "object %p of %zu bytes changed at %td", (void *)(p), (size_t)(n), at_); \
    } while (0)

/* Index of the first byte that is not zero, or -1. */
__attribute__((unused)) static ptrdiff_t not_zero(const void *p, size_t n)
{
    const unsigned char *b = p;
    for (size_t i = 0; i < n; i++) {
        if (b[i]) return (ptrdiff_t)i;
        if (n > 64 * KIB && i % 64 == 7) i += 56;
    }
    return -1;
}

/* Bytes resident now. */
static inline size_t resident(void)
{
    char text[128] = "";
    int fd = open("/proc/self/statm", O_RDONLY | O_CLOEXEC);
    CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
    close(fd);
    return strtoul(strchr(text, ' '), NULL, 10) * PAGE;
}

/* Moves this thread to a CPU; 0: that is not allowed. */
static inline int try_pin(int cpu)
{
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(cpu, &one);
    return !sched_setaffinity(0, sizeof one, &one);
}

static inline void pin(int cpu) { CHECK(try_pin(cpu), "CPU %d", cpu); }

/* Switches a CPU on or off, as root; whether that was done. The last one stays on. */
static inline int set_online(int cpu, int on)
{
    char path[80];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/online", cpu);
    int fd = open(path, O_WRONLY | O_CLOEXEC), done = fd >= 0 && write(fd, on ? "1" : "0", 1) == 1;
    if (fd >= 0) close(fd);
    return done;
}

/* Waits for a child, whose status must be 0. */
static inline void must_end_well(pid_t pid)
{
    int status = -1;
    pid_t found = -1;
    while (pid > 0 && (found = waitpid(pid, &status, 0)) < 0 && errno == EINTR) {}
    CHECK(pid > 0 && found == pid && status == 0, "child %d ended with %#x", (int)pid, status);
}

/* Memory of so many bytes, all written to. */
static inline void *filled(size_t n)
{
    void *p = malloc(n);
    CHECK(p, "%zu bytes", n);
    return memset(p, 7, n);
}

/* A size from 1 byte to 2^bits, log-distributed. */
static inline size_t log_size(uint64_t *state, unsigned bits)
{
    unsigned b = rnd(state) % bits + 1;
    return (rnd(state) & (((size_t)1 << b) - 1)) + 1;
}

/* Allocates, checks and frees `rounds` times over `slots` objects up to 2^bits bytes. */
__attribute__((unused)) static void churn(uint64_t seed, int rounds, int slots, unsigned bits)
{
    enum { MOST = 512 };
    void *p[MOST] = {0};
    size_t n[MOST];
    uint64_t s = seed;
    if (slots > MOST) slots = MOST;
    for (int r = 0; r < rounds; r++) {
        int i = rnd(&s) % slots;
        if (p[i]) { VERIFY(p[i], n[i], seed + i); free(p[i]); }
        n[i] = log_size(&s, bits);
        p[i] = malloc(n[i]);
        CHECK(p[i], "%zu bytes", n[i]);
        fill(p[i], n[i], seed + i);
    }
    for (int i = 0; i < slots; i++)
        if (p[i]) { VERIFY(p[i], n[i], seed + i); free(p[i]); }
}

/* A program at its work gets rid of what it freed, by its own calls or beside them: frees 200 MiB, then goes on until less
 * than 24 MiB more than `start` are resident. */
static inline void work_until_back(size_t start)
{
    free(filled(200 * MIB));
    for (int i = 0; i < 600 && resident() > start + 24 * MIB; i++) {
        free(memset(malloc(500000), 1, 500000));
        usleep(20000);
    }
    CHECK(resident() <= start + 24 * MIB, "%zu resident, %zu before", resident(), start);
}
