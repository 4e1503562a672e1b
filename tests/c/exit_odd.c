/* The end of a large process with a helper in odd circumstances: exit_odd MODE. Needs exit=detached, exit_threshold=32M.
 *   refused HOW   a filter of the program's refuses ways for its helper to end; it ends nevertheless:
 *                 end   exit_group, exit        trapped   kill too: by a signal that dumps no core
 *                 start exit_group and close_range, for a tracer: there is no helper, and no descriptor stays open
 *                 slow  the same with kill
 *   traced        under a tracer by a filter, whom its helper does not have: that ends, and leaves no core file
 *   requests      it is killed while requests of io_submit wait for a listening socket and for its pipe, and its helper
 *                 waits for admission: the port is free and the pipe ends at once
 *   nice HOW      a thread that gives way to others (HOW: idle, nice) makes no helper, the main thread does; `all`: where
 *                 the main thread is as nice, it makes one; `less`: where the main thread is less nice than usual, too
 *   left          its main thread has ended by pthread_exit and another sleeps: the helper looks ever more seldom */
#include "exit.h"
#include "filter.h"
#include <arpa/inet.h>
#include <linux/aio_abi.h>
#include <linux/capability.h>
#include <sys/socket.h>

/* Refuses the calls that `with` names, or a tracer, which is not there, is asked. Whether the helper cannot even start. */
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
        promise();
        answer_calls(calls[i], i < 2 ? SECCOMP_RET_ERRNO | EPERM : SECCOMP_RET_TRACE, 0);
        return i >= 2;
    }
    return 0;
}

/* A socket that listens at a port of this host's, any for 0; -1: the port is taken. */
static int listen_at(int port)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_port = htons(port),
                               .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int s = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    CHECK(s >= 0);
    if (!bind(s, (void *)&here, sizeof here) && !listen(s, 1)) return s;
    close(s);
    return -1;
}

/* Requests that wait for ever: for somebody who connects, and for the pipe's reader to go. Rings that were made later
 * have lower addresses. */
static void submit(int port)
{
    enum { MORE = 63 };
    static aio_context_t ring, more[MORE];
    struct iocb requests[2] = {
        {.aio_lio_opcode = IOCB_CMD_POLL, .aio_fildes = listen_at(port), .aio_buf = POLLIN},
        {.aio_lio_opcode = IOCB_CMD_POLL, .aio_fildes = SAYS}};
    struct iocb *all[] = {&requests[0], &requests[1]};
    CHECK((int)requests[0].aio_fildes >= 0, "port %d is taken", port);
    CHECK(!syscall(SYS_io_setup, 8, &ring) && syscall(SYS_io_submit, ring, 2, all) == 2);
    for (int i = 0; i < MORE; i++) CHECK(!syscall(SYS_io_setup, 8, &more[i]));
}

/* One large block: nothing later looks after the helper. */
static void grow(size_t bytes)
{
    held = filled(bytes);
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
    if (!strncmp(a[7], "port:", 5)) submit(atoi(a[7] + 5));
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

static int traced(void)
{
    char children[4096];
    int seen = 0;
    grow(48 * MIB);
    for (double start = now(); now() - start < patience(); usleep(1000)) {
        /* It has not even its name; only by those of this thread is it found. */
        read_text(children, sizeof children, "/proc/self/task/%d/children", (int)getpid());
        pid_t helper = atoi(children);
        seen |= helper != 0;
        if (seen && (!helper || is_gone(helper))) {
            CHECK(access("core", F_OK) && errno == ENOENT, "a core file");
            return passed();
        }
        free(memset(malloc(3 * MIB), 1, PAGE));
    }
    if (seen) CHECK(0, "the helper does not end");
    return skipped("no helper was seen");
}

/* The helper is not admitted as long as `slots` are taken. */
static int requests(void)
{
    struct sockaddr_in here;
    socklen_t size = sizeof here;
    char with[32];
    aio_context_t ring = 0;
    if (syscall(SYS_io_setup, 1, &ring)) return skipped("no io_submit here");
    CHECK(!syscall(SYS_io_destroy, ring));
    int any = listen_at(0), slots = take_slots();
    CHECK(any >= 0 && !getsockname(any, (void *)&here, &size) && !close(any));
    snprintf(with, sizeof with, "port:%d", ntohs(here.sin_port));
    struct plan plan = {"kill", 300, 0, 0, 0, with};
    struct child c = start(&plan, 1, -1);
    CHECK(listen_at(ntohs(here.sin_port)) < 0, "the child does not listen");
    end_child(&c, "kill");
    CHECK(fits("kill", wait_for(&c)));
    double began = now();
    /* One ring after the other would take more than 2 s. */
    ends_within(&c, 1.5);
    while (listen_at(ntohs(here.sin_port)) < 0) CHECK(now() - began < 1.5, "the port is taken for %.1f s", now() - began);
    printf("free after %.2f ms\n", (now() - began) * 1e3);
    if (is_gone(c.helper)) skipped("the helper did not wait for admission, this machine is short of memory");
    close(slots);
    end_of(&c);
    return passed();
}

static int idle, niceness = 19, may_end, rounds;

/* Slow paths of a large program, by a thread of little priority. */
static void *gives_way(void *unused)
{
    struct sched_param none = {0};
    if (idle) CHECK(!sched_setscheduler(0, SCHED_IDLE, &none));
    else CHECK(!setpriority(PRIO_PROCESS, 0, niceness));
    grow(48 * MIB);
    for (int i = 0; !__atomic_load_n(&may_end, __ATOMIC_ACQUIRE); i++) {
        free(memset(malloc(3 * MIB), 1, PAGE));
        if (i == 5) __atomic_store_n(&rounds, i, __ATOMIC_RELEASE);
        usleep(1000);
    }
    return unused;
}

/* There is a way back from idleness with this right, or up to this limit. */
static void leave_rights(void)
{
    struct rlimit none = {0, 0};
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct rights[2];
    CHECK(!setrlimit(RLIMIT_NICE, &none) && !syscall(SYS_capget, &header, rights));
    rights[0].effective &= ~(1u << CAP_SYS_NICE);
    rights[0].permitted &= ~(1u << CAP_SYS_NICE);
    CHECK(!syscall(SYS_capset, &header, rights));
}

static int nice_thread(const char *how)
{
    pthread_t t;
    pid_t helper;
    int all = !strcmp(how, "all"), less = !strcmp(how, "less");
    idle = !strcmp(how, "idle");
    if (less) {
        niceness = 0;
        if (setpriority(PRIO_PROCESS, 0, -5)) return skipped("not without privilege");
    }
    leave_rights();
    /* The heap is the main thread's. */
    free(malloc(100));
    if (all) CHECK(!setpriority(PRIO_PROCESS, 0, 19));
    int own = less ? 0 : getpriority(PRIO_PROCESS, 0);
    CHECK(!pthread_create(&t, NULL, gives_way, NULL));
    while (!__atomic_load_n(&rounds, __ATOMIC_ACQUIRE)) usleep(1000);
    if (all || less) {
        CHECK((helper = await_helper(getpid(), patience())), "no helper was made");
    } else {
        for (double start = now(); !(helper = helper_of(getpid())); usleep(1000)) {
            CHECK(now() - start < patience(), "no helper was made");
            free(memset(malloc(3 * MIB), 1, PAGE));
        }
    }
    CHECK(sched_getscheduler(helper) == SCHED_OTHER, "policy %d", sched_getscheduler(helper));
    CHECK(getpriority(PRIO_PROCESS, helper) == own, "as nice as %d", getpriority(PRIO_PROCESS, helper));
    __atomic_store_n(&may_end, 1, __ATOMIC_RELEASE);
    CHECK(!pthread_join(t, NULL));
    return passed();
}

static void *watch_helper(void *helper)
{
    pid_t pid = (pid_t)(uintptr_t)helper;
    long before = 0, early = sleeps(pid, 1);
    usleep(1500000);
    early = sleeps(pid, 1) - early;
    CHECK(early >= 2, "it does not look at all");
    usleep(1500000);
    before = sleeps(pid, 1);
    usleep(4000000);
    long later = sleeps(pid, 1) - before;
    CHECK(later >= 1 && later <= 12, "it has looked %ld times in 4 s", later);
    _exit(passed());
}

static int left(void)
{
    pthread_t t;
    grow(128 * MIB);
    pid_t helper = await_helper(getpid(), patience());
    CHECK(helper && !pthread_create(&t, NULL, watch_helper, (void *)(uintptr_t)helper));
    pthread_exit(NULL);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (!strcmp(mode, "child")) return child(argv);
    if (!strcmp(mode, "refused")) return refused(argv[2]);
    if (!strcmp(mode, "traced")) return traced();
    if (!strcmp(mode, "requests")) return requests();
    if (!strcmp(mode, "nice")) return nice_thread(argv[2]);
    if (!strcmp(mode, "left")) return left();
    CHECK(0, "exit_odd MODE");
}
