/* Children of every kind, of quiet and of busy parents: fork KIND [threads] [rounds]
 *   main     fork from the main thread         nested   the child makes threads and forks again
 *   thread   fork from another thread          exec     fork and exec of this program
 *   _fork    _Fork (skips atfork)              clone    raw clone(SIGCHLD) (skips atfork)
 *   spawn    posix_spawn, system, popen        border   _Fork of a parent with 8 GiB, none of it touched
 * Every child verifies the parent's objects, frees half of them and allocates at once. */
#include "check.h"
#include <pthread.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/syscall.h>

extern char **environ;
enum { KEPT = 3000 };
static unsigned char *kept[KEPT];
static size_t kept_n[KEPT];
static _Atomic int stop;
static _Atomic uint64_t pairs;
static int rounds = 60;

static void *busy(void *arg)
{
    uint64_t s = (uintptr_t)arg;
    unsigned char *p[64] = {0};
    size_t n[64];
    while (!atomic_load_explicit(&stop, memory_order_relaxed)) {
        int i = rnd(&s) % 64;
        if (p[i]) { VERIFY(p[i], n[i], i); free(p[i]); }
        n[i] = log_size(&s, rnd(&s) % 100 ? 12 : 19);
        CHECK((p[i] = malloc(n[i])));
        fill(p[i], n[i], i);
        atomic_fetch_add_explicit(&pairs, 1, memory_order_relaxed);
    }
    for (int i = 0; i < 64; i++) if (p[i]) { VERIFY(p[i], n[i], i); free(p[i]); }
    return NULL;
}

static void keep_some(uint64_t seed)
{
    for (int i = 0; i < KEPT; i++) {
        kept_n[i] = log_size(&seed, i % 100 ? 11 : 20);
        CHECK((kept[i] = malloc(kept_n[i])));
        fill(kept[i], kept_n[i], i);
    }
}

static void verify_kept(void)
{
    for (int i = 0; i < KEPT; i++) VERIFY(kept[i], kept_n[i], i);
}

static void child_work(uint64_t seed)
{
    void *first = malloc(100);
    CHECK(first);
    free(first);
    verify_kept();
    for (int i = 0; i < KEPT; i += 2) free(kept[i]);
    churn(seed, 3000, 300, 16);
    churn(seed, 60, 8, 22);
    for (int i = 1; i < KEPT; i += 2) VERIFY(kept[i], kept_n[i], i);
}

static pid_t make_child(const char *kind)
{
    if (!strcmp(kind, "_fork")) return _Fork();
    if (!strcmp(kind, "clone")) return syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    return fork();
}

static void with_threads(uint64_t seed)
{
    pthread_t t[4];
    stop = 0;
    for (int i = 0; i < 4; i++) CHECK(pthread_create(&t[i], NULL, busy, (void *)(seed + i)) == 0);
    usleep(20000);
    pid_t pid = fork();
    if (pid == 0) { churn(seed, 2000, 100, 14); _exit(0); }
    must_end_well(pid);
    stop = 1;
    for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
}

static void *fork_loop(void *arg)
{
    const char *kind = arg;
    for (int r = 0; r < rounds; r++) {
        pid_t pid = make_child(kind);
        if (pid == 0) {
            if (!strcmp(kind, "exec")) { execl("/proc/self/exe", "fork", "child", NULL); _exit(9); }
            child_work(r + 1);
            if (!strcmp(kind, "nested")) with_threads(r + 1);
            /* exit() runs atexit handlers and flushes; the raw kinds may not do that. */
            if (!strcmp(kind, "main") && r % 4 == 0) exit(0);
            _exit(0);
        }
        if (r % 8 == 0) churn(r, 200, 50, 14);
        must_end_well(pid);
    }
    return NULL;
}

static void spawn_loop(void)
{
    for (int r = 0; r < rounds; r++) {
        char *argv[] = { "true", NULL }, line[64] = "";
        pid_t pid = 0;
        CHECK(posix_spawnp(&pid, "true", NULL, NULL, argv, environ) == 0);
        must_end_well(pid);
        CHECK(system("exit 7") == 7 << 8);
        FILE *f = popen("echo ebb; echo tide", "r");
        CHECK(f && fgets(line, sizeof line, f) && !strcmp(line, "ebb\n"));
        while (fgets(line, sizeof line, f)) {}
        CHECK(pclose(f) == 0);
    }
}

/* The child begins behind its parent's heap, where no record has had memory so far. */
static void at_a_border(void)
{
    for (int i = 0; i < 31; i++) CHECK(malloc(256 << 20));
    for (int i = 0; i < 8; i++) {
        pid_t pid = _Fork();
        if (pid == 0) { churn(i + 1, 300, 50, 16); _exit(0); }
        must_end_well(pid);
        CHECK(malloc(32 << 20));
    }
}

static const char *const kinds[] = {"main", "nested", "thread", "exec", "_fork", "clone", "spawn", "border", NULL};

int main(int argc, char **argv)
{
    const char *kind = argc > 1 ? argv[1] : "main";
    int threads = argc > 2 ? number(argv[2]) : 0, is_known = 0;
    if (argc > 3) rounds = number(argv[3]);
    if (!strcmp(kind, "child")) { churn(1, 3000, 300, 16); return 0; }
    for (const char *const *known = kinds; *known; known++) is_known |= is(kind, *known);
    CHECK(is_known, "what is %s?", kind);
    pthread_t t[64], forker;
    keep_some(42);
    for (int i = 0; i < threads; i++)
        CHECK(pthread_create(&t[i], NULL, busy, (void *)(intptr_t)(i + 1)) == 0);
    if (!strcmp(kind, "spawn")) spawn_loop();
    else if (!strcmp(kind, "border")) at_a_border();
    else if (!strcmp(kind, "thread")) {
        CHECK(pthread_create(&forker, NULL, fork_loop, (void *)kind) == 0);
        pthread_join(forker, NULL);
    } else fork_loop((void *)kind);
    stop = 1;
    for (int i = 0; i < threads; i++) pthread_join(t[i], NULL);
    CHECK(!threads || pairs > 0);
    verify_kept();
    for (int i = 0; i < KEPT; i++) free(kept[i]);
    churn(9, 3000, 300, 16);
    return passed();
}
