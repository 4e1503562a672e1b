/* What programs of tests/c use and musl lacks. Included before everything else. The library has these functions, so that they
 * are looked up when a program starts. */
#ifndef EBBTIDE_MUSL_H
#define EBBTIDE_MUSL_H
#include <stddef.h>
#include <stdio.h>

/* Of mallopt. */
enum { M_MMAP_THRESHOLD = -3 };
struct mallinfo { int arena, ordblks, smblks, hblks, hblkhd, usmblks, fsmblks, uordblks, fordblks, keepcost; };
struct mallinfo2 {
    size_t arena, ordblks, smblks, hblks, hblkhd, usmblks, fsmblks, uordblks, fordblks, keepcost;
};
extern struct mallinfo mallinfo(void) __attribute__((weak));
extern struct mallinfo2 mallinfo2(void) __attribute__((weak));
extern int malloc_info(int, FILE *) __attribute__((weak));
extern void malloc_stats(void) __attribute__((weak));
extern int malloc_trim(size_t) __attribute__((weak));
extern int mallopt(int, int) __attribute__((weak));
extern void *pvalloc(size_t) __attribute__((weak));
extern int __vfork(void) __attribute__((weak, returns_twice));
#endif
