/* Where memory is short a helper does not wait for admission: reaper_short MIB soon|later. With exit=detached, and an empty
 * XDG_RUNTIME_DIR in which this program takes all turns. A child takes so many MiB and is killed. */
#include "helper.h"
#include <signal.h>

int main(int argc, char **argv)
{
    char byte;
    int ready[2];
    CHECK(argc > 2);
    size_t size = atoi(argv[1]) * MIB;
    int slots = take_slots();
    CHECK(!pipe(ready));

    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        filled(size);
        CHECK(write(ready[1], "x", 1) == 1);
        for (;;) pause();
    }
    CHECK(read(ready[0], &byte, 1) == 1);
    pid_t helper = must_have_helper(child);
    usleep(20000);
    CHECK(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
    if (is(argv[2], "soon")) {
        await_gone(helper, 5);
        return passed();
    }
    usleep(2000 * 1000);
    CHECK(!is_gone(helper), "it did not wait for a turn");
    close(slots);
    await_gone(helper, 10);
    return passed();
}
