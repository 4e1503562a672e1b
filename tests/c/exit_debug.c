/* A large process and its helper under a debugger, and its core file: exit_debug MODE. Needs exit=detached, exit_threshold=32M.
 *   traced           under ptrace: stopped, let go, killed
 *   attach           gdb attaches, looks, lets go
 *   core             ends by abort; 48 blocks hold a text that the core file must have */
#include "exit.h"
#include <sys/ptrace.h>

#define TEXTS 48
static const char text_of_block[] = "ifbq.qbuufso.gps.uif.dpsf.gjmf";

static int traced(void)
{
    int status;
    struct plan plan = {"exit", 48, 0, 0, 0, NULL};
    for (int how = 0; how < 3; how++) {
        struct child c = start(&plan, 1, -1);
        CHECK(!ptrace(PTRACE_SEIZE, c.pid, NULL, PTRACE_O_TRACEEXIT));
        CHECK(!ptrace(PTRACE_INTERRUPT, c.pid, NULL, NULL));
        CHECK(waitpid(c.pid, &status, __WALL) == c.pid && WIFSTOPPED(status));
        usleep(50000);
        CHECK(helper_of(c.pid) == c.helper);
        if (how == 0) {
            CHECK(!ptrace(PTRACE_DETACH, c.pid, NULL, NULL));
            end_child(&c, "exit");
        } else if (how == 1) {
            CHECK(!ptrace(PTRACE_CONT, c.pid, NULL, NULL));
            end_child(&c, "exit");
            /* It stops once more on its way out. The helper must wait for that. */
            CHECK(waitpid(c.pid, &status, __WALL) == c.pid && status >> 8 == (SIGTRAP | PTRACE_EVENT_EXIT << 8), "%x", status);
            usleep(100000);
            size_t pages = 0;
            char text[128];
            read_text(text, sizeof text, "/proc/%d/statm", (int)c.pid);
            CHECK(sscanf(text, "%*u %zu", &pages) == 1 && pages * PAGE > 40 * MIB, "%zu pages", pages);
            CHECK(helper_of(c.pid) == c.helper);
            CHECK(!ptrace(PTRACE_CONT, c.pid, NULL, NULL));
        } else {
            CHECK(!kill(c.pid, SIGKILL));
            do CHECK(waitpid(c.pid, &status, __WALL) == c.pid);
            while (WIFSTOPPED(status) && !ptrace(PTRACE_CONT, c.pid, NULL, NULL));
            CHECK(fits("kill", status), "%x", status);
            end_of(&c);
            continue;
        }
        status = wait_for(&c);
        CHECK(fits("exit", status), "%x", status);
        end_of(&c);
    }
    return passed();
}

static int attach(void)
{
    char command[256], line[512];
    int seen = 0;
    struct plan plan = {"exit", 48, 0, 0, 0, NULL};
    struct child c = start(&plan, 1, -1);
    unsetenv("LD_PRELOAD");
    snprintf(command, sizeof command, "gdb -nx -batch -p %d -ex 'print 6 * 7' -ex 'info threads' 2>&1", (int)c.pid);
    FILE *f = popen(command, "r");
    CHECK(f);
    while (fgets(line, sizeof line, f)) seen |= !!strstr(line, "= 42");
    pclose(f);
    CHECK(seen, "gdb has not looked");
    CHECK(helper_of(c.pid) == c.helper);
    end_child(&c, "exit");
    int status = wait_for(&c);
    CHECK(fits("exit", status), "%x", status);
    await_gone(c.helper, patience());
    return passed();
}

static int core(void)
{
    char text[sizeof text_of_block];
    for (size_t i = 0; i < sizeof text; i++) text[i] = text_of_block[i] ? text_of_block[i] - 1 : 0;
    for (int i = 0; i < TEXTS; i++) {
        char *p = malloc(MIB);
        CHECK(p);
        fill(p, MIB, i);
        memcpy(p + MIB / 2, text, sizeof text);
    }
    for (volatile char *p = text; p < text + sizeof text; p++) *p = 0;
    CHECK(getenv("NO_HELPER") || await_helper(getpid(), patience()));
    abort();
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (is(mode, "child")) return plain_child(argv);
    if (is(mode, "traced")) return traced();
    if (is(mode, "attach")) return attach();
    if (is(mode, "core")) return core();
    CHECK(0, "exit_debug MODE");
}
