/* The end of a large process with a helper in odd circumstances: exit_odd MODE. Needs exit=detached, exit_threshold=32M.
 *   refused HOW   a filter of the program's refuses ways for its helper to end; it ends nevertheless:
 *                 end   exit_group, exit        trapped   kill too: by a signal that dumps no core
 *                 start exit_group and close_range, for a tracer: there is no helper, and no descriptor stays open
 *                 slow  the same with kill
 * The children are those of exit.c. */
#include "exit.h"
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/syscall.h>

/* From now on these calls are refused, or a tracer, who is not there, is asked. */
static void refuse(const int *calls, unsigned answer)
{
    struct sock_filter f[16];
    int n = 0;
    f[n++] = (struct sock_filter)BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr));
    for (; *calls >= 0; calls++) {
        f[n++] = (struct sock_filter)BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, *calls, 0, 1);
        f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, answer);
    }
    f[n++] = (struct sock_filter)BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW);
    struct sock_fprog prog = {n, f};
    CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    CHECK(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &prog) == 0);
}

/* Of `with`: the calls, and whether the helper cannot even start. */
static int refuse_as(const char *with)
{
    static const int end[] = {SYS_exit_group, SYS_exit, -1};
    static const int trapped[] = {SYS_exit_group, SYS_exit, SYS_kill, -1};
    static const int start[] = {SYS_exit_group, SYS_close_range, -1};
    static const int slow[] = {SYS_exit_group, SYS_exit, SYS_kill, SYS_close_range, -1};
    const char *const names[] = {"end", "trapped", "start", "slow"};
    const int *const calls[] = {end, trapped, start, slow};
    for (int i = 0; i < 4; i++) {
        if (strcmp(with, names[i])) continue;
        refuse(calls[i], i < 2 ? SECCOMP_RET_ERRNO | EPERM : SECCOMP_RET_TRACE);
        return i >= 2;
    }
    return 0;
}

/* One large block: nothing later looks after the helper. */
static void grow(size_t bytes)
{
    held = malloc(bytes);
    CHECK(held);
    memset((void *)held, 7, bytes);
}

/* Waits for the only child, which this process did not start. */
static int collect(void)
{
    int status = 0;
    for (double start = now();; usleep(1000)) {
        pid_t found = waitpid(-1, &status, __WALL | WNOHANG);
        if (found > 0) break;
        CHECK(found == 0 && now() - start < patience(), "no helper ends");
    }
    CHECK(waitpid(-1, NULL, __WALL | WNOHANG) == -1 && errno == ECHILD, "more helpers than one");
    return status;
}

static int child(char **a)
{
    if (refuse_as(a[7])) {
        grow(atoi(a[3]) * MIB);
        int status = collect();
        CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL, "the helper ended with %x", status);
    } else {
        hold_memory(atoi(a[3]));
    }
    say(SAYS);
    for (;;) pause();
}

static void ends_within(const struct child *c, double seconds)
{
    struct pollfd end = {.fd = c->says, .events = POLLIN};
    CHECK(poll(&end, 1, (int)(seconds * 1e3)) == 1 && end.revents == POLLHUP, "the pipe is open for %.1f s", seconds);
}

static int refused(const char *how)
{
    int starts = strcmp(how, "start") && strcmp(how, "slow");
    struct plan plan = {"kill", 48, 0, 0, 0, how};
    CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1));
    struct child c = start(&plan, starts, -1);
    end_child(&c, "kill");
    CHECK(fits("kill", wait_for(&c)));
    ends_within(&c, patience());
    if (starts) {
        int status = collect(), by = WTERMSIG(status);
        CHECK(WIFSIGNALED(status) && !WCOREDUMP(status), "the helper ended with %x", status);
        CHECK(strcmp(how, "trapped") ? by == SIGKILL : by == SIGILL || by == SIGTRAP, "signal %d", by);
    } else {
        CHECK(waitpid(-1, NULL, __WALL | WNOHANG) == -1 && errno == ECHILD, "there is a helper");
    }
    forget(&c);
    return passed();
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (!strcmp(mode, "child")) return child(argv);
    if (!strcmp(mode, "refused")) return refused(argv[2]);
    CHECK(0, "exit_odd MODE");
}
