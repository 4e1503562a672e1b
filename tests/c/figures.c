/* Tests the statistics page when its file changes while the program runs: figures MODE DIR, with stats_dir=DIR.
 *   cut, half   the file is made shorter           removed, gone  the file, or its directory too, is removed
 *   refused     process_vm_writev is refused       kept, none     nothing changes; there is a file, or none
 *   leaderless     the first thread has ended
 *   full N      N bytes of a file system of 8 KiB mounted at DIR are in use: restarts as "none" */
#include "filter.h"
#include <malloc.h>
#include <pthread.h>
#include <sys/mount.h>
#include <sys/stat.h>

static char path[256];

/* Everything that stores figures: large and small memory, threads, workers, a release, a child. */
static void *work(void *unused)
{
    static __thread void *small[4000];
    for (int round = 0; round < 4; round++) {
        char *large = filled(100 * MIB);
        for (int i = 0; i < 4000; i++) CHECK((small[i] = malloc(1000)));
        free(large);
        for (int i = 0; i < 4000; i++) free(small[i]);
        usleep(60000);
    }
    malloc_trim(0);
    return unused;
}

static void all_work(void)
{
    pthread_t thread;
    CHECK(!pthread_create(&thread, NULL, work, NULL));
    work(NULL);
    CHECK(!pthread_join(thread, NULL));
}

static void full(char **argv, const char *bytes)
{
    char conf[512], file[256];
    static const char zeros[8192];
    CHECK(!unshare(CLONE_NEWNS) && !mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
    CHECK(!mount("none", argv[2], "tmpfs", 0, "size=8k,mode=777"));
    snprintf(file, sizeof file, "%s/taken", argv[2]);
    int fd = open(file, O_WRONLY | O_CREAT, 0600);
    CHECK(fd >= 0 && write(fd, zeros, atoi(bytes)) == atoi(bytes) && !close(fd));
    snprintf(conf, sizeof conf, "stats_dir=%s,dev=pages:all,exit=detached,exit_threshold=32M", argv[2]);
    setenv("EBBTIDE_CONF", conf, 1);
    execl("/proc/self/exe", argv[0], "none", argv[2], NULL);
    CHECK(0, "exec");
}

static int run(int argc, char **argv);

static void *run_here(void *argv)
{
    exit(run(3, argv));
}

int main(int argc, char **argv)
{
    pthread_t thread;
    if (argc < 2 || !is(argv[1], "leaderless")) return run(argc, argv);
    CHECK(!pthread_create(&thread, NULL, run_here, argv));
    syscall(SYS_exit, 0); /* pthread_exit needs libgcc */
}

static int run(int argc, char **argv)
{
    struct stat known;
    CHECK(argc > 2);
    const char *mode = argv[1];
    if (is(mode, "full")) full(argv, argv[3]);
    snprintf(path, sizeof path, "%s/%d.ebb", argv[2], (int)getpid());
    free(malloc(1));
    int there = !stat(path, &known);
    CHECK(there == !is(mode, "none"), "%s", path);
    CHECK(!there || (known.st_size == 8192 && known.st_blocks >= 16), "it is not there whole");
    if (is(mode, "refused")) {
        promise();
        answer_call(SYS_process_vm_writev, SECCOMP_RET_ERRNO | EPERM);
    }
    work(NULL);
    if (is(mode, "cut")) CHECK(!truncate(path, 0));
    if (is(mode, "half")) CHECK(!truncate(path, 4096));
    if (is(mode, "removed") || is(mode, "gone")) CHECK(!unlink(path));
    if (is(mode, "gone")) CHECK(!rmdir(argv[2]));
    all_work();
    pid_t child = fork();
    CHECK(child >= 0);
    if (!child) {
        work(NULL);
        exit(0);
    }
    must_end_well(child);
    if (is(mode, "cut")) CHECK(!stat(path, &known) && known.st_size == 0, "it has become longer");
    printf("%d\n", (int)getpid());
    return passed();
}
