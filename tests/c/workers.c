/* Workers are threads that libc does not know. Each mode ends with "ok", or "skipped: REASON".
 *   workers late          a filter for the main thread alone, beside a worker: soon no worker is without it, and memory
 *                         still comes back
 *   workers called        functions that bind one thread, or want no other, leave no worker
 *   workers strict        the same functions again, where a filter kills for calls that they do not need
 *   workers once_more     the same where a filter was there before
 *   workers at_once       the same, the moment that a worker was made
 *   workers blind         the same with a worker that cannot look
 *   workers sure          a filter that was there before: the first worker ends after 10 s, as it may have missed one; the
 *                         second, which knows what the first saw, stays
 *   workers idle          the same, where the program frees much shortly before the first worker ends and makes no call after it
 *   workers together      a filter for all threads (TSYNC)
 *   workers user          the main thread becomes somebody else
 *   workers everybody     a signal for each thread, and a wait until each has handled it or is gone, as libpsx does
 *   workers queue [FD]    mq_notify stays, with the queue at that descriptor
 *   workers flush         no file of a FUSE file system hears that one of its descriptors was closed */
#include "check.h"
#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/filter.h>
#include <linux/fuse.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <mqueue.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>

static int skipped(const char *reason) { printf("skipped: %s\n", reason); fflush(stdout); return 0; }

/* The number after a name in a thread's status; -1: there is none. */
static int field(long thread, const char *name)
{
    char path[64], line[256];
    int value = -1;
    snprintf(path, sizeof path, "/proc/self/task/%ld/status", thread);
    FILE *f = fopen(path, "r");
    if (!f) return -1;
    while (fgets(line, sizeof line, f)) if (!strncmp(line, name, strlen(name))) value = atoi(strchr(line, ':') + 1);
    fclose(f);
    return value;
}

/* Workers now; of those with less than `least` in a field of their status. The last one's number. */
static int workers_and(const char *name, int least, long *last)
{
    int n = 0;
    DIR *dir = opendir("/proc/self/task");
    CHECK(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        char path[64], text[32] = "";
        snprintf(path, sizeof path, "/proc/self/task/%.16s/comm", e->d_name);
        FILE *f = e->d_name[0] == '.' ? NULL : fopen(path, "r");
        if (!f) continue;
        if (fgets(text, sizeof text, f) && !strncmp(text, "ebbtide/", 8)) {
            *last = atol(e->d_name);
            n += !name || (unsigned)field(*last, name) < (unsigned)least;
        }
        fclose(f);
    }
    closedir(dir);
    return n;
}

static int workers(const char *name, int least) { long last; return workers_and(name, least, &last); }

/* The number of some worker; 0: there is none. */
static long a_worker(void) { long last = 0; workers_and(NULL, 0, &last); return last; }

static void use_much(void)
{
    char *p = malloc(200 * MIB);
    CHECK(p);
    memset(p, 7, 200 * MIB);
    free(p);
}

static void make_worker(void)
{
    use_much();
    for (double start = now(); !workers(NULL, 0); usleep(1000)) CHECK(now() - start < 5, "no worker");
}

/* A program at its work gets rid of what it freed, with a worker of its own kind if it gets one. */
static void gives_back(size_t before)
{
    use_much();
    for (int i = 0; i < 600 && resident() > before + 24 * MIB; i++) {
        free(memset(malloc(500000), 1, 500000));
        usleep(20000);
    }
    CHECK(resident() <= before + 24 * MIB, "%zu resident, %zu before", resident(), before);
}

/* What allows everything: a filter is what counts here. */
static struct sock_filter allow[] = { BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
static struct sock_fprog program = { 1, allow };

/* By the numbers of the calls, which nobody stands in front of. */
static int filter(int flags)
{
    CHECK(syscall(SYS_prctl, PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0);
    return syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, flags, &program);
}

/* No worker may do what the main thread may not, after so many seconds. */
static void confined(const char *name, double seconds)
{
    int least = field(getpid(), name);
    CHECK(least > 0, "%s %d", name, least);
    for (double start = now(); workers(name, least); usleep(20000))
        CHECK(now() - start < seconds, "%d workers with %s below %d", workers(name, least), name, least);
}

static void locked_in(int before, double wait_s, double seconds)
{
    size_t start = resident();
    const char *name = field(getpid(), "Seccomp_filters:") < 0 ? "Seccomp:" : "Seccomp_filters:";
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
    gives_back(start);
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
    CHECK(!prctl(PR_SET_NAME, "called") && workers(NULL, 0));
    for (int i = 0; i < 3; i++) {
        CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) && errno == 77);
        CHECK(!workers(NULL, 0));
        /* What comes by its number after that. */
        CHECK(!syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program));
        use_much();
        CHECK(!workers("Seccomp:", 2));
        make_worker_again();
    }
    CHECK(!pthread_create(&thread, NULL, locks_in, NULL) && !pthread_join(thread, NULL));
    CHECK(!workers(NULL, 0));
    make_worker_again();
    pid_t child = vfork();
    CHECK(child >= 0);
    if (!child) _exit(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || setns(-1, 0) != -1);
    CHECK(waitpid(child, &status, 0) == child && !status && workers(NULL, 0), "a child's call ended ours");
    CHECK(setns(-1, CLONE_NEWNET) == -1 && errno == EBADF && workers(NULL, 0));
    CHECK(setns(-1, 0) == -1 && errno == EBADF && !workers(NULL, 0));
    make_worker_again();
    CHECK(!unshare(CLONE_FILES) && workers(NULL, 0));
    CHECK(!unshare(CLONE_THREAD) && !workers(NULL, 0));
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

/* Without a call of the library's. */
static size_t resident_quietly(void)
{
    char text[128] = "";
    int fd = open("/proc/self/statm", O_RDONLY);
    CHECK(fd >= 0 && read(fd, text, sizeof text - 1) > 0);
    close(fd);
    return strtoul(strchr(text, ' '), NULL, 10) * PAGE;
}

static void idle(void)
{
    CHECK(!filter(0));
    size_t start = resident();
    make_worker();
    usleep(8800000);
    use_much();
    for (double since = now(); resident_quietly() > start + 24 * MIB; usleep(100000))
        CHECK(now() - since < 10, "%zu resident, %zu at the start", resident_quietly(), start);
}

static void together(void)
{
    size_t start = resident();
    make_worker();
    int failed = filter(SECCOMP_FILTER_FLAG_TSYNC);
    CHECK(!failed, "TSYNC says %d", failed);
    CHECK(!workers("Seccomp:", 2));
    gives_back(start);
    CHECK(!workers("Seccomp:", 2));
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
    if (field(getpid(), "Uid:") < 0) return skipped("/proc is closed to others");
    confined("Uid:", 3);
    confined("Gid:", 3);
    gives_back(start);
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

static volatile sig_atomic_t notified;
static void on_notice(int signal) { (void)signal; notified = 1; }

static int queue(int fd)
{
    char name[64];
    struct mq_attr attr = { .mq_maxmsg = 4, .mq_msgsize = 64 };
    struct sigevent event = { .sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGUSR1 };
    size_t start = resident();
    signal(SIGUSR1, on_notice);
    snprintf(name, sizeof name, "/ebbtide-test-%d", getpid());
    mqd_t q = mq_open(name, O_CREAT | O_RDWR, 0600, &attr);
    if (q < 0) return skipped("no message queues");
    mq_unlink(name);
    if (fd) { CHECK(dup2(q, fd) == fd); close(q); q = fd; }
    CHECK(!mq_notify(q, &event));
    make_worker();
    gives_back(start);
    CHECK(!mq_send(q, "x", 1, 0));
    for (int i = 0; i < 100 && !notified; i++) usleep(10000);
    CHECK(notified, "descriptor %d: the notification is lost", (int)q);
    return passed();
}

/* A FUSE file system of one file, by a process of its own: that of this one cannot end while it waits for itself. */
static int device, *flushes;

static void answer(uint64_t unique, int error, const void *data, size_t size)
{
    struct fuse_out_header out = { .len = sizeof out + (error ? 0 : size), .error = error, .unique = unique };
    struct iovec parts[2] = { { &out, sizeof out }, { (void *)data, error ? 0 : size } };
    if (writev(device, parts, 2) < 0) return;
}

static struct fuse_attr attributes(uint64_t node)
{
    struct fuse_attr a = { .ino = node, .nlink = 1, .size = node == 1 ? 0 : 4096, .blksize = 4096,
                           .mode = node == 1 ? S_IFDIR | 0755 : S_IFREG | 0644 };
    return a;
}

static void serve(void)
{
    static char request[1 << 18];
    ssize_t n;
    while ((n = read(device, request, sizeof request)) > 0 || errno == EINTR) {
        struct fuse_in_header *in = (void *)request;
        switch (in->opcode) {
        case FUSE_INIT: {
            struct fuse_init_in *want = (void *)(in + 1);
            struct fuse_init_out out = { .major = FUSE_KERNEL_VERSION, .minor = FUSE_KERNEL_MINOR_VERSION,
                                         .max_readahead = want->max_readahead, .max_write = 4096 };
            if (want->minor < out.minor) out.minor = want->minor;
            answer(in->unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_LOOKUP: {
            struct fuse_entry_out out = { .nodeid = 2, .attr_valid = 100, .entry_valid = 100, .attr = attributes(2) };
            answer(in->unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_GETATTR: {
            struct fuse_attr_out out = { .attr_valid = 100, .attr = attributes(in->nodeid) };
            answer(in->unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_OPEN: {
            struct fuse_open_out out = { .fh = 1 };
            answer(in->unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_STATFS: {
            struct fuse_statfs_out out = { .st = { .bsize = 4096, .namelen = 255 } };
            answer(in->unique, 0, &out, sizeof out);
            break;
        }
        case FUSE_FLUSH:
            __atomic_add_fetch(flushes, 1, __ATOMIC_SEQ_CST);
            answer(in->unique, 0, NULL, 0);
            break;
        case FUSE_RELEASE: answer(in->unique, 0, NULL, 0); break;
        case FUSE_FORGET: break;
        default: answer(in->unique, -ENOSYS, NULL, 0);
        }
    }
}

static int flush(void)
{
    char options[128], place[] = "/tmp/ebbtide-fuse-XXXXXX", path[64];
    size_t start = resident();
    flushes = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(flushes != MAP_FAILED);
    device = open("/dev/fuse", O_RDWR | O_CLOEXEC);
    if (device < 0) return skipped("no /dev/fuse");
    CHECK(mkdtemp(place));
    /* Whatever happens, the mount goes with this process. */
    if (unshare(CLONE_NEWNS) || mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL)) {
        rmdir(place);
        return skipped("no mount of its own");
    }
    snprintf(options, sizeof options, "fd=%d,rootmode=40000,user_id=%d,group_id=%d", device, getuid(), getgid());
    if (mount("test", place, "fuse", 0, options)) { rmdir(place); return skipped("mount of a FUSE file system"); }
    pid_t server = fork();
    CHECK(server >= 0);
    if (!server) { prctl(PR_SET_PDEATHSIG, SIGKILL); serve(); _exit(0); }
    close(device);
    snprintf(path, sizeof path, "%s/file", place);
    int file = open(path, O_RDWR);
    CHECK(file >= 0, "%s", path);
    make_worker();
    gives_back(start);
    int seen = __atomic_load_n(flushes, __ATOMIC_SEQ_CST);
    CHECK(seen == 0, "%d flushes, and nothing was closed", seen);
    /* The control: a close is heard. */
    CHECK(!close(file));
    CHECK(__atomic_load_n(flushes, __ATOMIC_SEQ_CST) == 1);
    CHECK(!umount2(place, MNT_DETACH) && !rmdir(place));
    kill(server, SIGKILL);
    return passed();
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (!strcmp(mode, "late")) locked_in(0, 0.1, 3);
    else if (!strcmp(mode, "called")) called();
    else if (!strcmp(mode, "strict")) strict();
    else if (!strcmp(mode, "once_more")) locked_in(1, 0.1, 12);
    else if (!strcmp(mode, "at_once")) locked_in(0, 0, 12);
    else if (!strcmp(mode, "blind")) return blind();
    else if (!strcmp(mode, "sure")) sure();
    else if (!strcmp(mode, "idle")) idle();
    else if (!strcmp(mode, "together")) together();
    else if (!strcmp(mode, "user")) return user();
    else if (!strcmp(mode, "everybody")) everybody();
    else if (!strcmp(mode, "queue")) return queue(argc > 2 ? atoi(argv[2]) : 0);
    else if (!strcmp(mode, "flush")) return flush();
    else CHECK(0, "workers MODE");
    return passed();
}
