/* Large programs one after the other in one process, by exec: reaper_execs N. Needs exit=detached, exit_threshold=32M.
 * Each has a helper, and collects that of the one before, which has ended. The last finds a child of its own, which only a
 * wait with __WALL does. */
#include "process.h"

static int running, ended, others;

/* Counts the children by what they are. Allocates nothing. */
static void look(void)
{
    char list[4096], text[512];
    running = ended = others = 0;
    read_text(list, sizeof list, "/proc/self/task/%d/children", (int)getpid());
    for (char *at = list; *at; at = strchr(at, ' ') + 1) {
        if (!read_text(text, sizeof text, "/proc/%d/stat", atoi(at))) continue;
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
    filled(128 * MIB);
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
