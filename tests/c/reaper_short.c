/* Where memory is short a helper does not wait for admission: reaper_short MIB soon|later. With exit=detached, and an empty
 * XDG_RUNTIME_DIR in which this program takes all slots. A child takes so many MiB and is killed. */
#include "reaper.h"
#include <signal.h>
#include <sys/wait.h>

int main(int argc, char **argv)
{
    const char *dir = getenv("XDG_RUNTIME_DIR");
    char path[256], byte;
    int ready[2];
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = 4096};
    CHECK(argc > 2 && dir);
    size_t size = atoi(argv[1]) * MIB;
    snprintf(path, sizeof path, "%s/ebbtide-exit.lock", dir);
    int slots = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    CHECK(slots >= 0 && !fcntl(slots, F_SETLK, &all) && !pipe(ready));

    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        char *memory = malloc(size);
        CHECK(memory);
        memset(memory, 7, size);
        CHECK(write(ready[1], "x", 1) == 1);
        for (;;) pause();
    }
    CHECK(read(ready[0], &byte, 1) == 1);
    pid_t helper = wait_for_helper(child);
    usleep(20000);
    CHECK(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
    if (!strcmp(argv[2], "soon")) {
        wait_gone(helper, 5);
        return passed();
    }
    usleep(2000 * 1000);
    CHECK(has_memory(helper), "it did not wait for admission");
    close(slots);
    wait_gone(helper, 10);
    return passed();
}
