/* Asks for statistics where a filter kills for getpid: few_calls. Needs syscalls=basic, which promises not to make that call
 * after the start. */
#include "filter.h"
#include <malloc.h>

int main(void)
{
    free(malloc(100));
    promise();
    answer_call(SYS_getpid, SECCOMP_RET_KILL_PROCESS);
    char *p = malloc(1000);
    struct mallinfo2 info = mallinfo2();
    CHECK(p && info.uordblks + info.hblkhd >= 1000);
    malloc_stats();
    free(p);
    malloc_trim(0);
    puts("ok");
    return 0;
}
