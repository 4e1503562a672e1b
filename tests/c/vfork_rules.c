/* Tests vfork and the registration of restartable sequences (rseq), which a child shares with its parent.
 *   vfork_rules exec ROUNDS       children that execute a program, while the parent changes CPU
 *   vfork_rules names             `vfork` and `__vfork` are one function
 *   vfork_rules nested            children of children
 *   vfork_rules threads ROUNDS    several threads at once
 *   vfork_rules handler           a signal handler that runs before the parent is registered again, and allocates
 *   vfork_rules jump              one that jumps out of vfork
 *   vfork_rules fails             vfork itself is refused: errno, and the registration is back
 *   vfork_rules refused ERRNO     a filter refuses to unregister; ERRNO 0: it claims success
 *   vfork_rules halfway           a filter refuses to register again
 *   vfork_rules killed            a filter kills the process for either call
 *   vfork_rules slice             a thread that has switched time-slice extension on (Linux 7.0) keeps it
 *   vfork_rules guarded ...       any of these; children must not see a CPU number
 *   vfork_rules guarded own ...   the same where the library registers each thread, because libc does not */
#include "filter.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>

#if !defined SYS_rseq && defined __x86_64__
#define SYS_rseq 334
#endif
#ifndef SYS_vfork
#define SYS_vfork SYS_clone /* libc's vfork makes that call then */
#endif

extern pid_t __vfork(void);
/* glibc has these since 2.35. */
extern const ptrdiff_t __rseq_offset __attribute__((weak));
extern const unsigned __rseq_size __attribute__((weak));

static int guarded, own, ncpu;
static volatile int jumps, handled;

/* Asks the kernel by another registration, which it refuses: 0 for a registered thread, else -1. */
static int is_registered(void)
{
    static __thread struct { _Alignas(32) char bytes[32]; } area;
    enum { UNREGISTER = 1, SIGNATURE = 0x53053053 };
    int saved = errno, cpu = -1;
    if (syscall(SYS_rseq, &area, 32, 0, SIGNATURE) == 0) syscall(SYS_rseq, &area, 32, UNREGISTER, SIGNATURE);
    else if (errno == EINVAL) cpu = 0;
    errno = saved;
    return cpu;
}

/* As the kernel last wrote it: -1 without a registration, -2 in threads that such a thread makes, -3 where there is
 * none. The place of the library's own is not known: then any CPU is 0. */
__attribute__((noinline)) static int cpu_id(void)
{
    if (own) return is_registered();
    if (!&__rseq_offset || !&__rseq_size || __rseq_size == 0) return -3;
    return *(volatile int *)((char *)__builtin_thread_pointer() + __rseq_offset + 4);
}

static int has_rseq(void) { return own || (&__rseq_size && __rseq_size); }

static void registered(void) { CHECK(!has_rseq() || cpu_id() >= 0, "cpu_id %d", cpu_id()); }

static void unregistered(void) { CHECK(!guarded || !has_rseq() || cpu_id() < 0, "cpu_id %d", cpu_id()); }

static void move(int round) { pin(round % ncpu); }

static void exec(int rounds)
{
    for (int r = 0; r < rounds; r++) {
        pid_t pid = vfork();
        if (pid == 0) {
            execl("/proc/self/exe", "vfork_rules", "end", NULL);
            _exit(9);
        }
        must_end_well(pid);
        move(r);
        registered();
        CHECK(!has_rseq() || own || ncpu < 2 || cpu_id() == r % ncpu, "cpu_id %d", cpu_id());
        churn(r, 100, 50, 12);
    }
}

__attribute__((noinline)) static void child_works(int seed)
{
    unregistered();
    move(seed);
    churn(seed, 500, 60, 12);
    unregistered();
}

static void names(void)
{
    for (int r = 0; r < 20; r++) {
        pid_t pid = r % 2 ? vfork() : __vfork();
        if (pid == 0) { child_works(r); _exit(0); }
        must_end_well(pid);
        registered();
    }
}

static void nested(void)
{
    for (int r = 0; r < 20; r++) {
        static pid_t inner;
        pid_t pid = vfork();
        if (pid == 0) {
            child_works(r);
            inner = vfork();
            if (inner == 0) { child_works(r + 1); _exit(0); }
            must_end_well(inner);
            child_works(r);
            _exit(0);
        }
        must_end_well(pid);
        registered();
        churn(r, 500, 60, 12);
    }
}

static _Atomic int stop;

static void *busy(void *arg)
{
    uint64_t s = (uintptr_t)arg;
    while (!stop) churn(rnd(&s), 500, 60, 12);
    return NULL;
}

static void *forker(void *rounds)
{
    churn(9, 100, 60, 12); /* a first slow path: the library may register this thread */
    for (int r = 0; r < (intptr_t)rounds; r++) {
        pid_t pid = vfork();
        if (pid == 0) { child_works(r); _exit(0); }
        must_end_well(pid);
        if (!jumps) registered();
        churn(r, 200, 60, 12);
    }
    return NULL;
}

static pthread_t beside[2];

static void begin_beside(void)
{
    for (int i = 0; i < 2; i++) CHECK(pthread_create(&beside[i], NULL, busy, (void *)(intptr_t)(i + 1)) == 0);
}

static void end_beside(void)
{
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(beside[i], NULL);
}

static void threads(int rounds)
{
    pthread_t t[4];
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&t[i], NULL, forker, (void *)(intptr_t)rounds) == 0);
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
}

static sigjmp_buf out;

static void handler(int signal)
{
    (void)signal;
    unregistered();
    churn(7, 300, 60, 12);
    unregistered();
    handled++;
    if (jumps) siglongjmp(out, 1);
}

/* The signal is there when the kernel lets the parent go on. */
static void signalled(int seed)
{
    volatile pid_t parent = getpid();
    pid_t pid = vfork();
    if (pid == 0) {
        child_works(seed);
        syscall(SYS_tgkill, parent, parent, SIGUSR1); /* the main thread, not the others */
        _exit(0);
    }
    CHECK(!jumps, "the handler has not run before vfork returned");
    must_end_well(pid);
}

static void handlers(int jump)
{
    struct sigaction action = { .sa_handler = handler };
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    jumps = jump;
    begin_beside();
    for (volatile int r = 0; r < 10; r++) {
        if (!sigsetjmp(out, 1)) signalled(r);
        CHECK(handled == r + 1);
        if (jump) { CHECK(wait(NULL) > 0); unregistered(); } else registered();
        move(r);
        churn(r, 3000, 60, 12);
    }
    threads(3);
    end_beside();
}

/* Calls of that number have this result; `flags` -1: any, else for this third argument of rseq. */
static void filter(int call, int flags, unsigned result)
{
    struct sock_filter f[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 4),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, flags, 1, 0),
        BPF_JUMP(BPF_JMP | BPF_JA, flags != -1, 0, 0),
        BPF_STMT(BPF_RET | BPF_K, result),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW) };
    /* The library makes no rseq call of its own once it has noticed a promise. */
    if (own && result != SECCOMP_RET_KILL) promise_unseen();
    else promise();
    install(f, sizeof f / sizeof *f, 0);
}

static void fails(void)
{
    filter(SYS_vfork, -1, SECCOMP_RET_ERRNO | EAGAIN);
    for (int r = 0; r < 3; r++) {
        errno = 0;
        pid_t pid = vfork();
        CHECK(pid == -1 && errno == EAGAIN, "%d", pid);
        registered();
        churn(r, 500, 60, 12);
    }
}

static void refused(int error)
{
    static volatile int touched;
    begin_beside();
    filter(SYS_rseq, -1, SECCOMP_RET_ERRNO | error);
    own = 0; /* the kernel gives no answer any more */
    for (int r = 0; r < 20; r++) {
        pid_t pid = vfork();
        if (pid == 0) {
            move(r);
            churn(r, 500, 60, 12);
            /* A child in the parent's memory must not believe in a CPU number. */
            touched += !has_rseq() || cpu_id() >= 0;
            _exit(0);
        }
        must_end_well(pid);
        registered();
        CHECK(!guarded || !has_rseq() || !touched, "the child shares the memory and its CPU number is %d", cpu_id());
        churn(r, 500, 60, 12);
    }
    end_beside();
}

static void halfway(void)
{
    begin_beside();
    filter(SYS_rseq, 0, SECCOMP_RET_ERRNO | EPERM);
    for (int r = 0; r < 10; r++) {
        pid_t pid = vfork();
        if (pid == 0) { child_works(r); _exit(0); }
        must_end_well(pid);
        unregistered();
        move(r);
        churn(r, 2000, 60, 12);
    }
    end_beside();
}

static void killed(void)
{
    int status;
    pid_t program = fork();
    if (program == 0) {
        filter(SYS_rseq, -1, SECCOMP_RET_KILL);
        pid_t pid = vfork();
        if (pid == 0) _exit(0);
        must_end_well(pid);
        _exit(0);
    }
    CHECK(waitpid(program, &status, 0) == program);
    CHECK(WIFSIGNALED(status) ? WTERMSIG(status) == SIGSYS && guarded && has_rseq() && !own : !status && (own || !guarded),
          "status %x", status);
}

static int slice(void)
{
    enum { SLICE_EXTENSION = 79, GET = 1, SET = 2, ENABLE = 1 };
    if (prctl(SLICE_EXTENSION, SET, ENABLE, 0, 0)) {
        printf("skipped: PR_RSEQ_SLICE_EXTENSION: %s\n", strerror(errno));
        return 0;
    }
    for (int r = 0; r < 5; r++) {
        CHECK(prctl(SLICE_EXTENSION, GET, 0, 0, 0) == ENABLE, "round %d", r);
        pid_t pid = vfork();
        if (pid == 0) { child_works(r); _exit(0); }
        must_end_well(pid);
        registered();
    }
    return passed();
}

int main(int argc, char **argv)
{
    if (argc > 1 && !strcmp(argv[1], "guarded")) { guarded = 1; argc--; argv++; }
    if (argc > 1 && !strcmp(argv[1], "own")) { own = 1; argc--; argv++; }
    const char *what = argc > 1 ? argv[1] : "";
    int number = argc > 2 ? atoi(argv[2]) : 0;
    ncpu = sysconf(_SC_NPROCESSORS_ONLN);
    if (!strcmp(what, "end")) { free(malloc(100)); return 0; }
    churn(1, 1000, 60, 12);
    if (!strcmp(what, "exec")) exec(number);
    else if (!strcmp(what, "names")) names();
    else if (!strcmp(what, "nested")) nested();
    else if (!strcmp(what, "threads")) threads(number);
    else if (!strcmp(what, "handler")) handlers(0);
    else if (!strcmp(what, "jump")) handlers(1);
    else if (!strcmp(what, "fails")) fails();
    else if (!strcmp(what, "refused")) refused(number);
    else if (!strcmp(what, "halfway")) halfway();
    else if (!strcmp(what, "killed")) killed();
    else if (!strcmp(what, "slice")) return slice();
    else CHECK(0, "unknown: %s", what);
    return passed();
}
