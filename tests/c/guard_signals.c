/* A program's own actions of SIGSEGV beside guarded objects: guard_signals CASE
 *   flags      a query returns what was set; a handler has the signals, the stack and the arguments that it asked for
 *   early      the same for a handler that was installed before the first allocation
 *   jump       handlers jump out of faults in guarded objects and of others, a thousand times
 *   repair     a handler makes memory accessible, and the fault does not happen again
 *   storm      the same in four threads, while the action changes
 *   handled    a fault in a guarded object reaches the handler, which ends the program with 42
 *   default    a fault elsewhere ends the program         sent       a signal that was sent does
 *   ignored    ignored signals are ignored, also after an exec
 *   overflow   a handler on its own stack sees that the stack is full */
#include "check.h"
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/mman.h>

static sigjmp_buf back;
static volatile sig_atomic_t hits, blocked, was_on_own_stack;
static void *volatile fault_at;
static char *own_stack;
#define OWN_STACK_BYTES ((size_t)64 << 10)

__attribute__((noinline)) static void *allocate(size_t size) { return malloc(size); }
__attribute__((noinline)) static void release(void *p) { free(p); }

static void note(void)
{
    char here;
    sigset_t mask;
    sigprocmask(SIG_BLOCK, NULL, &mask);
    blocked = sigismember(&mask, SIGUSR2) | sigismember(&mask, SIGSEGV) << 1 | sigismember(&mask, SIGUSR1) << 2;
    was_on_own_stack = own_stack && (size_t)(&here - own_stack) < OWN_STACK_BYTES;
    hits++;
}

static void with_info(int number, siginfo_t *info, void *context)
{
    note();
    fault_at = number == SIGSEGV && context ? info->si_addr : NULL;
    siglongjmp(back, 1);
}

static void without_info(int number)
{
    note();
    fault_at = number == SIGSEGV ? (void *)1 : NULL;
    siglongjmp(back, 1);
}

/* C libraries show the flag SA_RESTORER that they set. */
static int flags_of(const struct sigaction *action) { return action->sa_flags & ~0x04000000; }

/* Uses an address that has no access; the handler jumps back. */
static void touch(void *p)
{
    if (sigsetjmp(back, 1)) return;
    *(volatile char *)p = 1;
    CHECK(0, "no fault at %p", p);
}

static void *no_access(void)
{
    void *p = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

static void set(int flags, sigset_t *mask)
{
    struct sigaction action = {.sa_flags = flags}, seen;
    if (mask) action.sa_mask = *mask;
    if (flags & SA_SIGINFO) action.sa_sigaction = with_info;
    else action.sa_handler = without_info;
    CHECK(!sigaction(SIGSEGV, &action, NULL) && !sigaction(SIGSEGV, NULL, &seen));
    CHECK(seen.sa_handler == action.sa_handler && flags_of(&seen) == flags, "%x, not %x", seen.sa_flags, flags);
    CHECK(sigismember(&seen.sa_mask, SIGUSR2) == (mask != NULL) && !sigismember(&seen.sa_mask, SIGSEGV));
}

static void flags(void)
{
    char *place = no_access();
    sigset_t mask;
    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR2);
    own_stack = mmap(NULL, OWN_STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stack_t stack = {.ss_sp = own_stack, .ss_size = OWN_STACK_BYTES};
    CHECK(own_stack != MAP_FAILED && !sigaltstack(&stack, NULL));
    for (int bits = 0; bits < 32; bits++) {
        int wanted = (bits & 1 ? SA_SIGINFO : 0) | (bits & 2 ? SA_NODEFER : 0) | (bits & 4 ? SA_ONSTACK : 0)
            | (bits & 8 ? SA_RESETHAND : 0) | SA_RESTART;
        int before = hits;
        set(wanted, bits & 16 ? &mask : NULL);
        touch(place + 24);
        CHECK(hits == before + 1 && fault_at == (bits & 1 ? place + 24 : (void *)1), "%d: %p", bits, fault_at);
        CHECK(blocked == (bits >> 4) + (bits & 2 ? 0 : 2), "%d: signals %x", bits, blocked);
        CHECK(was_on_own_stack == !!(bits & 4), "%d", bits);
        struct sigaction seen;
        CHECK(!sigaction(SIGSEGV, NULL, &seen));
        CHECK((seen.sa_handler == SIG_DFL) == !!(bits & 8), "%d", bits);
    }
    void (*old)(int) = signal(SIGSEGV, without_info);
    CHECK(old == SIG_DFL || old == without_info || old == (void (*)(int))with_info);
    CHECK(signal(SIGSEGV, SIG_DFL) == without_info && signal(SIGSEGV, SIG_IGN) == SIG_DFL);
    CHECK(signal(SIGSEGV, SIG_DFL) == SIG_IGN);
}

static void early(void)
{
    char *place = no_access();
    set(SA_SIGINFO | SA_RESETHAND, NULL);
    void *first = allocate(100);
    struct sigaction seen;
    CHECK(!sigaction(SIGSEGV, NULL, &seen) && seen.sa_sigaction == with_info && flags_of(&seen) == (int)(SA_SIGINFO | SA_RESETHAND));
    touch(place);
    CHECK(hits == 1 && fault_at == place);
    CHECK(!sigaction(SIGSEGV, NULL, &seen) && seen.sa_handler == SIG_DFL);
    release(first);
}

static void jump(void)
{
    char *place = no_access();
    set(SA_SIGINFO, NULL);
    for (int i = 0; i < 1000; i++) {
        char *p = allocate(100 + i);
        release(p);
        touch(i % 2 ? p : place);
        CHECK(fault_at == (i % 2 ? p : place));
    }
    CHECK(hits == 1000);
}

static void open_page(int number, siginfo_t *info, void *context)
{
    (void)number, (void)context;
    hits++;
    void *page = (void *)((uintptr_t)info->si_addr & -PAGE);
    if (mprotect(page, PAGE, PROT_READ | PROT_WRITE)) _exit(9);
}

/* Memory of the program's own, and a page-aligned object whose access it takes away. */
static void *repairs(void *unused)
{
    for (int i = 0; i < 300; i++) {
        char *p = i % 2 ? no_access() : aligned_alloc(PAGE, PAGE);
        CHECK(p);
        if (i % 2 == 0) CHECK(!mprotect(memset(p, 7, PAGE), PAGE, PROT_NONE));
        *(volatile char *)(p + 5) = 1;
        CHECK(p[5] == 1);
        if (i % 2) munmap(p, PAGE);
        else free(p);
    }
    return unused;
}

static void repair(void)
{
    struct sigaction action = {.sa_sigaction = open_page, .sa_flags = SA_SIGINFO};
    CHECK(!sigaction(SIGSEGV, &action, NULL));
    repairs(NULL);
    CHECK(hits == 300, "%d", (int)hits);
}

static void storm(void)
{
    struct sigaction action = {.sa_sigaction = open_page, .sa_flags = SA_SIGINFO}, seen;
    pthread_t threads[4];
    CHECK(!sigaction(SIGSEGV, &action, NULL));
    for (int i = 0; i < 4; i++) CHECK(!pthread_create(&threads[i], NULL, repairs, NULL));
    for (int i = 0; i < 2000; i++) {
        action.sa_flags ^= SA_NODEFER;
        CHECK(!sigaction(SIGSEGV, &action, &seen) && seen.sa_sigaction == open_page);
        CHECK(flags_of(&seen) == (action.sa_flags ^ SA_NODEFER));
    }
    for (int i = 0; i < 4; i++) CHECK(!pthread_join(threads[i], NULL));
}

static void end(int number) { _exit(number == SIGSEGV ? 42 : 1); }

static void handled(void)
{
    CHECK(signal(SIGSEGV, end) == SIG_DFL);
    char *p = tell(allocate(100));
    release(p);
    p[3] = 1;
}

static void ignored(char *program)
{
    free(allocate(10));
    CHECK(signal(SIGSEGV, SIG_IGN) == SIG_DFL);
    CHECK(!kill(getpid(), SIGSEGV));
    execl(program, program, "still-ignored", NULL);
    CHECK(0);
}

static int deep(int depth) { volatile char room[4096]; room[0] = depth; return depth < 0 ? 0 : deep(depth + 1) + room[0]; }

static void overflow(void)
{
    own_stack = mmap(NULL, OWN_STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    stack_t stack = {.ss_sp = own_stack, .ss_size = OWN_STACK_BYTES};
    CHECK(own_stack != MAP_FAILED && !sigaltstack(&stack, NULL));
    set(SA_SIGINFO | SA_ONSTACK, NULL);
    if (!sigsetjmp(back, 1)) deep(0);
    CHECK(hits == 1 && was_on_own_stack);
}

int main(int count, char **args)
{
    CHECK(count == 2);
    if (is(args[1], "early")) return early(), passed();
    free(allocate(10));
    if (is(args[1], "flags")) flags();
    else if (is(args[1], "jump")) jump();
    else if (is(args[1], "repair")) repair();
    else if (is(args[1], "storm")) storm();
    else if (is(args[1], "handled")) handled();
    else if (is(args[1], "default")) *(volatile char *)no_access() = 1;
    else if (is(args[1], "sent")) CHECK(!kill(getpid(), SIGSEGV) && sleep(5));
    else if (is(args[1], "ignored")) ignored(args[0]);
    else if (is(args[1], "still-ignored")) CHECK(signal(SIGSEGV, SIG_IGN) == SIG_IGN && !raise(SIGSEGV));
    else if (is(args[1], "overflow")) overflow();
    else CHECK(0, "unknown case %s", args[1]);
    return passed();
}
