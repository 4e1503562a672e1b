/* What workers leave alone of the program's files: worker_files MODE
 *   queue [FD]    mq_notify stays, with the queue at that descriptor
 *   flush         no file of a FUSE file system hears that one of its descriptors was closed */
#include "worker.h"
#include <linux/fuse.h>
#include <mqueue.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/uio.h>

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
    work_until_back(start);
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
    work_until_back(start);
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
    if (is(mode, "queue")) return queue(argc > 2 ? atoi(argv[2]) : 0);
    if (is(mode, "flush")) return flush();
    CHECK(0, "worker_files MODE");
}
