/* Makes the kernel stop early: tracer PROGRAM ARGUMENT...
 * Runs the program under ptrace and lowers the number of ranges of each process_madvise with more than one, at random. The
 * kernel does less than was asked, then, and says so. Tells how many calls were cut, and how often uname was called. */
#include "check.h"

#ifndef __x86_64__
int main(void) { return skipped("registers of another processor"); }
#else
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>

enum { REFUSED = 77 };
static long calls, cut, names;

static void at_entry(pid_t thread, const struct __ptrace_syscall_info *call, uint64_t *seed)
{
    struct user_regs_struct registers;
    names += call->entry.nr == SYS_uname;
    if (call->entry.nr != SYS_process_madvise) return;
    calls++;
    if (call->entry.args[2] < 2) return;
    CHECK(ptrace(PTRACE_GETREGS, thread, 0, &registers) == 0);
    registers.rdx = 1 + rnd(seed) % (call->entry.args[2] - 1);
    CHECK(ptrace(PTRACE_SETREGS, thread, 0, &registers) == 0);
    cut++;
}

int main(int argc, char **argv)
{
    CHECK(argc > 1, "tracer PROGRAM ARGUMENT...");
    pid_t pid = fork(), thread;
    if (pid == 0) {
        if (ptrace(PTRACE_TRACEME, 0, 0, 0)) _exit(REFUSED);
        raise(SIGSTOP);
        execvp(argv[1], argv + 1);
        CHECK(0, "%s", argv[1]);
    }
    int status, result = 0;
    uint64_t seed = 11;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid);
    long options = PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_TRACEEXEC | PTRACE_O_EXITKILL;
    if (!WIFSTOPPED(status) || ptrace(PTRACE_SETOPTIONS, pid, 0, options) || ptrace(PTRACE_SYSCALL, pid, 0, 0)) {
        kill(pid, SIGKILL);
        skipped("ptrace is refused");
        return 0;
    }
    while ((thread = waitpid(-1, &status, __WALL)) > 0) {
        if (!WIFSTOPPED(status)) {
            if (thread == pid) result = status;
            continue;
        }
        int sig = WSTOPSIG(status), event = status >> 16;
        struct __ptrace_syscall_info call;
        if (sig == (SIGTRAP | 0x80)) {
            if (ptrace(PTRACE_GET_SYSCALL_INFO, thread, sizeof call, &call) > 0 && call.op == PTRACE_SYSCALL_INFO_ENTRY)
                at_entry(thread, &call, &seed);
            sig = 0;
        } else if (event || sig == SIGSTOP) sig = 0;
        /* Killed meanwhile, if this fails. */
        ptrace(PTRACE_SYSCALL, thread, 0, (long)sig);
    }
    printf("cut %ld of %ld calls, asked for names %ld times\n", cut, calls, names);
    CHECK(WIFEXITED(result) && WEXITSTATUS(result) == 0, "status %x", result);
    return passed();
}
#endif
