/* Tests a heap that begins in a vfork child: vfork_first. The child's malloc is the first one. The parent then has
 * workers of its own and, in the directory of the argument, a page of figures. */
#include "stats.h"
#include "worker.h"

int main(int argc, char **argv)
{
    char page[256];
    int status;
    CHECK(argc == 2);
    CHECK(!stats().opened_bytes, "the heap has begun");
    pid_t child = vfork();
    if (child == 0) {
        char *p = malloc(100);
        _exit(!p || !stats().opened_bytes);
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && !status, "%#x", status);
    make_worker();
    snprintf(page, sizeof page, "%s/%d.ebb", argv[1], (int)getpid());
    for (double start = now(); access(page, R_OK); usleep(1000)) CHECK(now() - start < 5, "no %s", page);
    snprintf(page, sizeof page, "%s/%d.ebb", argv[1], (int)child);
    CHECK(access(page, F_OK), "%s", page);
    /* The next child is none of the heap's process. */
    child = vfork();
    if (child == 0) {
        use_much();
        _exit(workers());
    }
    CHECK(child > 0 && waitpid(child, &status, 0) == child && !status, "%#x", status);
    return passed();
}
