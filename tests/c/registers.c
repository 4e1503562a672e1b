/* Tests the registration for restartable sequences (rseq) that the library makes where the C library makes none:
 * musl, glibc before 2.35, or GLIBC_TUNABLES=glibc.pthread.rseq=0. In other cases it prints `skipped`.
 *   registers threads           each thread is registered after its first slow path, in every kind of thread
 *   registers exits SECONDS     threads that end in great numbers: joined, detached, by pthread_exit, in destructors
 *   registers vfork             a vfork child of a thread that has not allocated, and of one that has
 *   registers clone             a clone(CLONE_VM) child on the block of a thread that has not allocated
 *   registers fork              forks in threads: the child of a registered thread is registered
 *   registers filter            a filter that kills for rseq comes late
 *   registers other             a thread with a registration of its own keeps it
 *   registers handler SECONDS   signal handlers allocate while their threads register
 *   registers none              no thread is registered: another owner, or rseq=off
 *   registers refused           a filter refuses rseq from the start
 *   registers dlopen LIBRARY    threads allocate with a library that is opened after they were made */
#include "filter.h"
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>

#if !defined SYS_rseq && defined __x86_64__
#define SYS_rseq 334
#endif

enum { UNREGISTER = 1, SIGNATURE = 0x53053053 };
struct area { _Alignas(32) char bytes[32]; };

static int rseq(struct area *area, int flags) { return syscall(SYS_rseq, area, sizeof *area, flags, SIGNATURE); }

/* Whether this thread is registered, as the kernel says. */
__attribute__((noinline)) static int registered(void)
{
    static __thread struct area area;
    int saved = errno, is = rseq(&area, 0) != 0;
    CHECK(!is || errno == EINVAL);
    if (!is) CHECK(rseq(&area, UNREGISTER) == 0);
    errno = saved;
    return is;
}

static void begin(pthread_t *thread, void *(*run)(void *), intptr_t argument)
{
    CHECK(pthread_create(thread, NULL, run, (void *)argument) == 0);
}

static void in_a_thread(void *(*run)(void *), intptr_t argument)
{
    pthread_t thread;
    begin(&thread, run, argument);
    pthread_join(thread, NULL);
}

static void work(int seed) { churn(seed, 300, 60, 12); }

/* Threads that allocate all the time and check what they have. */
static _Atomic int stop;
static pthread_t beside[2];

static void *busy(void *arg)
{
    for (uint64_t s = (uintptr_t)arg; !stop;) churn(rnd(&s), 500, 60, 12);
    return NULL;
}

static void begin_beside(void)
{
    for (int i = 0; i < 2; i++) begin(&beside[i], busy, i + 1);
}

static void end_beside(void)
{
    stop = 1;
    for (int i = 0; i < 2; i++) pthread_join(beside[i], NULL);
}

static void *registers(void *arg)
{
    CHECK(!registered());
    work((intptr_t)arg);
    CHECK(registered());
    return NULL;
}

static void threads(void)
{
    CHECK(registered());
    for (int i = 0; i < 20; i++) in_a_thread(registers, i);
}

/* The end of threads. */
static pthread_key_t first, last;
static _Atomic long detached;

static void destructor(void *count)
{
    work(5);
    void *volatile object = malloc(40);
    free(object);
    if (count > (void *)1) pthread_setspecific(last, (char *)count - 1);
}

static void *ends(void *arg)
{
    intptr_t kind = (intptr_t)arg;
    if (kind & 1) CHECK(pthread_setspecific(first, (void *)1) == 0);
    if (kind & 2) CHECK(pthread_setspecific(last, (void *)5) == 0);
    if (kind & 4) work(kind); /* else the first slow path is in a destructor, or there is none */
    if (kind & 8) { detached--; }
    if (kind & 16) pthread_exit(NULL);
    return NULL;
}

static void exits(double seconds)
{
    CHECK(pthread_key_create(&first, destructor) == 0);
    work(1);
    CHECK(pthread_key_create(&last, destructor) == 0);
    begin_beside();
    pthread_attr_t alone;
    CHECK(!pthread_attr_init(&alone) && !pthread_attr_setdetachstate(&alone, PTHREAD_CREATE_DETACHED));
    for (double end = now() + seconds; now() < end;) {
        pthread_t thread[32];
        for (intptr_t kind = 0; kind < 32; kind++) {
            if (kind & 8) detached++;
            CHECK(!pthread_create(&thread[kind], kind & 8 ? &alone : NULL, ends, (void *)kind));
        }
        for (int kind = 0; kind < 32; kind++)
            if (!(kind & 8)) pthread_join(thread[kind], NULL);
        while (detached > 64) usleep(100);
    }
    end_beside();
}

static void child_works(int seed)
{
    CHECK(!registered());
    work(seed);
    CHECK(!registered());
}

static void *vforks(void *arg)
{
    intptr_t works_before = (intptr_t)arg;
    if (works_before) work(1);
    for (int r = 0; r < 10; r++) {
        pid_t pid = vfork();
        if (pid == 0) { child_works(r); _exit(0); }
        must_end_well(pid);
        CHECK(registered() == works_before);
    }
    work(2);
    CHECK(registered());
    return NULL;
}

static char stack[1 << 16];

static int child(void *arg)
{
    (void)arg;
    child_works(3);
    return 0;
}

static void *clones(void *arg)
{
    (void)arg;
    CHECK(!registered());
    for (int r = 0; r < 10; r++) {
        pid_t pid = clone(child, stack + sizeof stack, CLONE_VM | CLONE_VFORK | SIGCHLD, NULL);
        must_end_well(pid);
        CHECK(!registered());
    }
    work(4);
    CHECK(registered());
    return NULL;
}

static void *forks(void *arg)
{
    intptr_t works_before = (intptr_t)arg;
    if (works_before) work(1);
    for (int r = 0; r < 5; r++) {
        pid_t pid = fork();
        if (pid == 0) {
            /* The fork's handlers may allocate. */
            CHECK(!works_before || registered());
            work(r);
            CHECK(registered());
            in_a_thread(registers, r);
            _exit(0);
        }
        must_end_well(pid);
    }
    return NULL;
}

static void *stays_out(void *arg)
{
    work((intptr_t)arg);
    return NULL;
}

static void filter(void)
{
    begin_beside();
    promise();
    answer_call(SYS_rseq, SECCOMP_RET_KILL);
    work(1);
    for (int i = 0; i < 8; i++) in_a_thread(stays_out, i);
    pid_t pid = vfork();
    if (pid == 0) { work(9); _exit(0); }
    must_end_well(pid);
    end_beside();
}

static void *owner(void *arg)
{
    static __thread struct area own;
    (void)arg;
    CHECK(rseq(&own, 0) == 0);
    for (int i = 0; i < 20; i++) {
        work(i);
        CHECK(*(volatile int *)(own.bytes + 4) >= 0);
    }
    CHECK(rseq(&own, UNREGISTER) == 0);
    work(3);
    CHECK(!registered());
    return NULL;
}

static void on_signal(int signal)
{
    (void)signal;
    free(malloc(100));
}

static void *registers_soon(void *arg)
{
    for (volatile int i = (intptr_t)arg; i > 0; i--) {}
    work((intptr_t)arg);
    CHECK(registered());
    return NULL;
}

static void handler(double seconds)
{
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };
    CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
    uint64_t s = 1;
    for (double end = now() + seconds; now() < end;) {
        pthread_t thread;
        begin(&thread, registers_soon, rnd(&s) % 3000);
        /* Before glibc 2.34, a thread that has ended is not found. */
        for (int i = rnd(&s) % 20, gone = 0; i >= 0 && !gone; i--) {
            gone = pthread_kill(thread, SIGUSR1);
            CHECK(!gone || gone == ESRCH);
        }
        pthread_join(thread, NULL);
    }
}

static void *stays_free(void *arg)
{
    work((intptr_t)arg);
    CHECK(!registered());
    return NULL;
}

static void none(void)
{
    work(0);
    for (int i = 0; i < 5; i++) in_a_thread(stays_free, i);
}

static void refused(const char *program)
{
    if (getenv("REFUSED")) {
        for (int i = 0; i < 5; i++) in_a_thread(stays_out, i);
        pid_t pid = vfork();
        if (pid == 0) { work(9); _exit(0); }
        must_end_well(pid);
        return;
    }
    promise();
    answer_call(SYS_rseq, SECCOMP_RET_ERRNO | EPERM);
    setenv("REFUSED", "1", 1);
    execl("/proc/self/exe", program, "refused", NULL);
    CHECK(0, "exec");
}

/* An allocator that was opened late. */
static void *(*opened_malloc)(size_t);
static void (*opened_free)(void *);
static _Atomic int is_open;

static void *uses_opened(void *arg)
{
    enum { OBJECTS = 50 };
    uint64_t seed = (uintptr_t)arg;
    unsigned char *objects[OBJECTS];
    while (!is_open) usleep(100);
    for (int round = 0; round < 2000; round++) {
        for (int i = 0; i < OBJECTS; i++) {
            objects[i] = opened_malloc(16 + i * 7);
            CHECK(objects[i]);
            fill(objects[i], 16 + i * 7, seed + i);
        }
        for (int i = 0; i < OBJECTS; i++) {
            VERIFY(objects[i], 16 + i * 7, seed + i);
            opened_free(objects[i]);
        }
    }
    CHECK(registered());
    return NULL;
}

static void opens(const char *library)
{
    pthread_t early[3], late[3];
    for (int i = 0; i < 3; i++) begin(&early[i], uses_opened, i);
    void *handle = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    CHECK(handle, "%s", dlerror());
    opened_malloc = (void *(*)(size_t))dlsym(handle, "malloc");
    opened_free = (void (*)(void *))dlsym(handle, "free");
    CHECK(opened_malloc && opened_free && opened_malloc != malloc);
    is_open = 1;
    for (int i = 0; i < 3; i++) begin(&late[i], uses_opened, i + 3);
    for (int i = 0; i < 3; i++) pthread_join(early[i], NULL), pthread_join(late[i], NULL);
}

extern const unsigned __rseq_size __attribute__((weak));

int main(int argc, char **argv)
{
    const char *topic = argc > 1 ? argv[1] : "";
    double seconds = argc > 2 && !is(topic, "dlopen") ? number(argv[2]) : 0;
    if (&__rseq_size && __rseq_size) return skipped("the C library registers rseq");
    if (is(topic, "refused")) { refused(argv[0]); return passed(); }
    if (rseq(NULL, 0) != 0 && errno == ENOSYS) return skipped("no rseq");
    work(1);
    if (is(topic, "threads")) threads();
    else if (is(topic, "exits")) exits(seconds);
    else if (is(topic, "vfork")) { in_a_thread(vforks, 0); in_a_thread(vforks, 1); }
    else if (is(topic, "clone")) in_a_thread(clones, 0);
    else if (is(topic, "fork")) { in_a_thread(forks, 0); in_a_thread(forks, 1); forks((void *)1); }
    else if (is(topic, "filter")) filter();
    else if (is(topic, "other")) in_a_thread(owner, 0);
    else if (is(topic, "handler")) handler(seconds);
    else if (is(topic, "none")) none();
    else if (is(topic, "dlopen")) opens(argv[2]);
    else CHECK(0, "unknown: %s", topic);
    return passed();
}
