/* What programs of tests/c use and the oldest C library of the matrix lacks. Included before everything else. The
 * programs run with newer ones too, so that what is missing is looked up when they start. */
#ifndef EBBTIDE_OLD_H
#define EBBTIDE_OLD_H
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/types.h>

#if !__GLIBC_PREREQ(2, 33)
struct mallinfo2 {
    size_t arena, ordblks, smblks, hblks, hblkhd, usmblks, fsmblks, uordblks, fordblks, keepcost;
};
extern struct mallinfo2 mallinfo2(void) __attribute__((weak));
#endif

#if !__GLIBC_PREREQ(2, 34)
extern pid_t _Fork(void) __attribute__((weak));

__attribute__((unused)) static pid_t fork_without_handlers(void)
{
    if (_Fork) return _Fork();
    puts("skipped: no _Fork in this libc");
    exit(0);
}
#define _Fork fork_without_handlers
#endif

#ifndef SYS_close_range
#define SYS_close_range 436
#endif
#ifndef SYS_process_madvise
#define SYS_process_madvise 440
#endif
#endif
