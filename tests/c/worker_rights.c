/* What workers may do when the program confines itself: worker_rights MODE. Workers are threads that libc does not know.
 *   late          a filter for the main thread alone, beside a worker: soon no worker is without it, and memory still
 *                 comes back
 *   called        functions that bind one thread, or want no other, leave no worker
 *   strict        the same functions again, where a filter kills for calls that they do not need
 *   once_more     the same where a filter was there before
 *   at_once       the same, the moment that a worker was made
 *   blind         the same with a worker that cannot look
 *   sure          a filter that was there before: the first worker ends after 10 s, as it may have missed one; the second,
 *                 which knows what the first saw, stays
 *   idle          the same, where the program frees much shortly before the first worker ends and makes no call after it
 *   together      a filter for all threads (TSYNC)
 *   user          the main thread becomes somebody else
 *   everybody     a signal for each thread, and a wait until each has handled it or is gone, as libpsx does */
#include "filter.h"
#include "worker.h"
#include <grp.h>
#include <malloc.h>
#include <mqueue.h>
#include <pthread.h>
#include <signal.h>

/* Workers with less than `least` in a field of their status. */
static int workers_below(const char *name, int least)
{
    int count = 0;
    struct numbers all = numbers_of("/proc/self/task");
    for (int worker; (worker = next_worker(&all));) count += (unsigned)status_of(worker, name) < (unsigned)least;
    return count;
}

/* What allows everything: a filter is what counts here. */
static struct sock_filter allow[] = { BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
static struct sock_fprog program = { 1, allow };

/* By the numbers of the calls, which nobody stands in front of. */
static int filter(int flags)
{
    promise_unseen();
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

/* No worker may do what the main thread may not, after so many seconds. */
static void confined(const char *name, double seconds)
{
    int least = status_of(getpid(), name);
    CHECK(least > 0, "%s %d", name, least);
    for (double start = now(); workers_below(name, least); usleep(20000))
        CHECK(now() - start < seconds, "%d workers with %s below %d", workers_below(name, least), name, least);
}

static void locked_in(int before, double wait_s, double seconds)
{
    size_t start = resident();
    const char *name = status_of(getpid(), "Seccomp_filters:") < 0 ? "Seccomp:" : "Seccomp_filters:";
    for (int i = 0; i < before; i++) CHECK(!filter(0));
    if (wait_s > 0) { make_worker(); usleep(wait_s * 1e6); } else use_much();
    CHECK(!filter(0));
    confined(name, seconds);
    if (seconds > 10) {
        /* With a window so long that the worker has a reason to stay. */
        use_much();
        CHECK(malloc_trim(0) == 1 && resident() < start + 24 * MIB, "%zu resident, %zu before", resident(), start);
        confined(name, 3);
        return;
    }
    work_until_back(start);
    confined(name, seconds);
}

/* A message queue keeps a worker in the program's table, where it opens nothing. */
static int blind(void)
{
    char name[64];
    struct mq_attr attr = { .mq_maxmsg = 1, .mq_msgsize = 64 };
    snprintf(name, sizeof name, "/ebbtide-blind-%d", getpid());
    if (mq_open(name, O_CREAT | O_RDWR, 0600, &attr) < 0) return skipped("no message queues");
    mq_unlink(name);
    locked_in(0, 0.1, 12);
    return passed();
}

/* None is made for 100 ms after all had to end. */
static void make_worker_again(void) { usleep(200000); make_worker(); }

/* A filter that kills for each system call of the library's own beside the one that is asked for. */
static void strict(void)
{
    static const int calls[] = { SYS_getpid, SYS_gettid, SYS_futex, SYS_tgkill, SYS_sched_yield };
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        int status;
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) {
            struct sock_filter kill[] = {
                BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
                BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, calls[i], 0, 1),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
                BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
            };
            struct sock_fprog kills = { 4, kill };
            void *volatile starts = malloc(100);
            free(starts);
            int failed = prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &kills);
            failed |= prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program);
            _exit(failed);
        }
        CHECK(waitpid(child, &status, 0) == child && !status, "call %d: status %x", calls[i], status);
    }
}

static void *locks_in(void *arg)
{
    CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program));
    return arg;
}

static void called(void)
{
    pthread_t thread;
    int status;
    size_t start = resident();
    make_worker();
    errno = 77;
    CHECK(!prctl(PR_SET_NAME, "called") && workers());
    for (int i = 0; i < 3; i++) {
        CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && errno == 77);
        CHECK(!workers());
        /* What comes by its number after that. */
        CHECK(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
        use_much();
        CHECK(!workers_below("Seccomp:", 2));
        make_worker_again();
    }
    CHECK(!pthread_create(&thread, NULL, locks_in, NULL) && !pthread_join(thread, NULL));
    CHECK(!workers());
    make_worker_again();
    pid_t child = vfork();
    CHECK(child >= 0);
    if (!child) _exit(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || setns(-1, 0) != -1);
    CHECK(waitpid(child, &status, 0) == child && !status && workers(), "a child's call ended ours");
    CHECK(setns(-1, CLONE_NEWNET) == -1 && errno == EBADF && workers());
    CHECK(setns(-1, 0) == -1 && errno == EBADF && !workers());
    make_worker_again();
    CHECK(!unshare(CLONE_FILES) && workers());
    CHECK(!unshare(CLONE_THREAD) && !workers());
    CHECK(prctl(-1, 1, 2, 3, 4) == -1 && errno == EINVAL);
    use_much();
    CHECK(malloc_trim(0) == 1 && resident() < start + 24 * MIB, "%zu resident, %zu before", resident(), start);
}

static void sure(void)
{
    CHECK(!filter(0));
    make_worker();
    long first = a_worker(), second;
    for (double start = now(); a_worker() == first; usleep(100000)) CHECK(now() - start < 12, "the first one stays");
    make_worker();
    CHECK((second = a_worker()) && second != first);
    for (double start = now(); now() - start < 12; usleep(100000))
        CHECK(a_worker() == second, "the second one has ended after %.1f s", now() - start);
    CHECK(!filter(0));
    confined("Seccomp_filters:", 3);
}

static void idle(void)
{
    CHECK(!filter(0));
    size_t start = resident();
    make_worker();
    usleep(8800000);
    use_much();
    for (double since = now(); resident() > start + 24 * MIB; usleep(100000))
        CHECK(now() - since < 10, "%zu resident, %zu at the start", resident(), start);
}

static void together(void)
{
    size_t start = resident();
    make_worker();
    int failed = filter(SECCOMP_FILTER_FLAG_TSYNC);
    CHECK(!failed, "TSYNC says %d", failed);
    CHECK(!workers_below("Seccomp:", 2));
    work_until_back(start);
    CHECK(!workers_below("Seccomp:", 2));
    CHECK(!filter(SECCOMP_FILTER_FLAG_TSYNC));
}

static int user(void)
{
    if (geteuid()) return skipped("only root becomes somebody else");
    size_t start = resident();
    make_worker();
    usleep(100000);
    CHECK(!setgroups(0, NULL) && !setresgid(65534, 65534, 65534) && !setresuid(65534, 65534, 65534));
    /* /proc of a process that has changed its user is root's. */
    prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);
    if (status_of(getpid(), "Uid:") < 0) return skipped("/proc is closed to others");
    confined("Uid:", 3);
    confined("Gid:", 3);
    work_until_back(start);
    return passed();
}

static pthread_t spinner;
static volatile int rounds, ends;
static int done[1 << 22];

static void mark(int signal) { (void)signal; done[syscall(SYS_gettid) & ((1 << 22) - 1)] = 1; }
static void *spins(void *arg) { while (!ends) usleep(1000); return arg; }

static void everybody(void)
{
    make_worker();
    CHECK(!pthread_create(&spinner, NULL, spins, NULL));
    /* glibc hides this signal, its own, from sigaction. */
    struct { void (*handler)(int); unsigned long flags; void (*restorer)(void); unsigned long mask; } act = { 0 }, old;
    struct sigaction model = { .sa_handler = mark, .sa_flags = SA_RESTART };
    CHECK(!sigaction(SIGUSR1, &model, NULL) && !syscall(SYS_rt_sigaction, SIGUSR1, NULL, &act, 8));
    CHECK(!syscall(SYS_rt_sigaction, 33, &act, &old, 8));
    double start = now();
    for (int left = 1, turn = 0; left; turn++) {
        left = 0;
        DIR *dir = opendir("/proc/self/task");
        CHECK(dir);
        for (struct dirent *e; (e = readdir(dir));) {
            long thread = atol(e->d_name);
            if (!thread || thread == getpid() || done[thread]) continue;
            left++;
            if (turn == 0) syscall(SYS_tkill, thread, 33);
        }
        closedir(dir);
        CHECK(now() - start < 4, "%d threads have not answered", left);
        sched_yield();
    }
    ends = 1;
    CHECK(!pthread_join(spinner, NULL));
    make_worker();
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (is(mode, "late")) locked_in(0, 0.1, 3);
    else if (is(mode, "called")) called();
    else if (is(mode, "strict")) strict();
    else if (is(mode, "once_more")) locked_in(1, 0.1, 12);
    else if (is(mode, "at_once")) locked_in(0, 0, 12);
    else if (is(mode, "blind")) return blind();
    else if (is(mode, "sure")) sure();
    else if (is(mode, "idle")) idle();
    else if (is(mode, "together")) together();
    else if (is(mode, "user")) return user();
    else if (is(mode, "everybody")) everybody();
    else CHECK(0, "worker_rights MODE");
    return passed();
}
