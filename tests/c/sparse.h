/* Makes memory with few live objects, and waits until the rest is released. */
#pragma once
#include "check.h"
#include <sys/mman.h>

/* Sleeps until RSS is below the limit; seconds it took. */
static inline double wait_below(size_t limit, double most)
{
    for (int i = 0; i < most * 100; i++) {
        if (resident() < limit) return i / 100.0;
        usleep(10000);
    }
    CHECK(0, "RSS %zu is not below %zu after %.1f s", resident(), limit, most);
    return most;
}

enum { MAX_OBJECTS = 4 << 20 };
static unsigned char **objects;
static unsigned *sizes;
static size_t count;
/* Where they are, and which pages from there on have a live byte. */
static uintptr_t base, top;
static unsigned char live[1 << 21];

/* Fills about `total` bytes, frees 10 of 11 at random; bytes of pages with a live byte. */
__attribute__((unused)) static size_t fill_and_free(size_t low, size_t high, size_t total)
{
    objects = mmap(NULL, MAX_OBJECTS * sizeof *objects, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    sizes = mmap(NULL, MAX_OBJECTS * sizeof *sizes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    /* One huge page may be larger than what the test measures. */
    madvise(objects, MAX_OBJECTS * sizeof *objects, MADV_NOHUGEPAGE);
    madvise(sizes, MAX_OBJECTS * sizeof *sizes, MADV_NOHUGEPAGE);
    uint64_t s = 7;
    for (size_t all = 0; all < total && count < MAX_OBJECTS; count++) {
        sizes[count] = low + rnd(&s) % (high - low);
        CHECK((objects[count] = malloc(sizes[count])));
        fill(objects[count], sizes[count], count);
        all += sizes[count];
    }
    size_t pages = 0;
    base = UINTPTR_MAX;
    for (size_t i = 0; i < count; i++) {
        if ((uintptr_t)objects[i] < base) base = (uintptr_t)objects[i];
        if ((uintptr_t)objects[i] > top) top = (uintptr_t)objects[i];
    }
    base &= ~(uintptr_t)(PAGE - 1);
    for (size_t i = 0; i < count; i++) {
        if (rnd(&s) % 11) { free(objects[i]); objects[i] = NULL; continue; }
        uintptr_t a = (uintptr_t)objects[i] - base;
        for (size_t p = a / PAGE; p <= (a + sizes[i] - 1) / PAGE; p++) {
            /* Another zone is far away: its pages are counted once an object. */
            if (p >= sizeof live) pages++;
            else pages += !live[p], live[p] = 1;
        }
    }
    return pages * PAGE;
}

__attribute__((unused)) static void verify(void)
{
    for (size_t i = 0; i < count; i++) if (objects[i]) VERIFY(objects[i], sizes[i], i);
}

/* Resident pages among the objects that have no live byte. One zone only. */
__attribute__((unused)) static size_t left_behind(void)
{
    static unsigned char there[1 << 21];
    size_t pages = (top - base) / PAGE, left = 0;
    CHECK(pages < sizeof there && mincore((void *)base, pages * PAGE, there) == 0);
    for (size_t i = 0; i < pages; i++) left += there[i] & 1 && !live[i];
    return left;
}
