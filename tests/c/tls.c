/* Workers start workers in a program with much thread-local storage: libc's per-thread data, such as
 * errno, lies far below the thread pointer, where a worker has other memory. */
#include "check.h"

static __thread char wide[64 << 20];

int main(void)
{
    wide[5] = 1;
    for (int i = 0; i < 3; i++) {
        free(memset(malloc(512 * MIB), 1, 512 * MIB));
        for (int k = 0; k < 40 && resident() > 64 * MIB; k++) usleep(50000);
    }
    CHECK(wide[5] == 1 && wide[6] == 0);
    return passed();
}
