/* Shared by the test programs: checks that end the program, content patterns, random numbers.
 * A program that passes prints "ok" on stdout and returns 0; a failed check prints one FAIL line on
 * stderr and exits with 1. Nothing here allocates. */
#pragma once
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define KIB ((size_t)1 << 10)
#define MIB ((size_t)1 << 20)
#define GIB ((size_t)1 << 30)
#define PAGE ((size_t)4096)
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
__attribute__((unused)) static size_t resident(void)
{
    unsigned long pages = 0;
    FILE *f = fopen("/proc/self/statm", "r");
    CHECK(f && fscanf(f, "%*u %lu", &pages) == 1);
    fclose(f);
    return pages * PAGE;
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
