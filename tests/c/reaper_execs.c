/* Large programs one after the other in one process, by exec: reaper_execs N. Needs exit=detached, exit_threshold=32M.
 * Each has a helper, and collects that of the one before, which has ended. The last finds a child of its own, which only a
 * wait with __WALL does. */
#include "check.h"
#include <fcntl.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static int running, ended, others;

/* Counts the children by what they are. Allocates nothing. */
static void look(void)
{
    char list[4096], path[64], text[512];
    running = ended = others = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)getpid());
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0);
    ssize_t length = read(fd, list, sizeof list - 1);
    CHECK(length >= 0);
    close(fd);
    list[length] = 0;
    for (char *at = list; *at; at = strchr(at, ' ') + 1) {
        snprintf(path, sizeof path, "/proc/%d/stat", atoi(at));
        if ((fd = open(path, O_RDONLY)) < 0) continue;
        length = read(fd, text, sizeof text - 1);
        close(fd);
        if (length <= 0) continue;
        text[length] = 0;
        char *behind = strrchr(text, ')');
        CHECK(behind);
        if (!strstr(text, "(ebbtide/exit)")) others++;
        else if (behind[2] == 'Z') ended++;
        else running++;
    }
}

int main(int argc, char **argv)
{
    int left = argc > 1 ? atoi(argv[1]) : 0, is_first = argc < 3, status;
    double start = now();
    char less[16];
    for (look(); running; look(), usleep(1000)) CHECK(now() - start < 10, "the helper stays after an exec");
    CHECK(ended + running == !is_first, "%d helpers before the first allocation", ended);
    char *memory = malloc(128 * MIB);
    CHECK(memory);
    memset(memory, 7, 128 * MIB);
    for (look(); !running; look(), usleep(1000)) CHECK(now() - start < 20, "no helper");
    CHECK(ended == 0, "%d helpers from before are left", ended);
    if (left == 0) {
        CHECK(others == 1, "%d children of its own", others);
        CHECK(waitpid(-1, &status, __WALL | WNOHANG) > 0 && WEXITSTATUS(status) == 7, "its own child was taken away");
        return passed();
    }
    pid_t own = left == 1 ? syscall(SYS_clone, 0, NULL, NULL, NULL, NULL) : 1;
    if (own == 0) _exit(7);
    CHECK(own > 0);
    snprintf(less, sizeof less, "%d", left - 1);
    execl("/proc/self/exe", argv[0], less, "again", NULL);
    CHECK(0, "exec");
}
