/* fork beside threads that hold locks of libc's and allocate: forklocks MODE [forks]
 *   flush      fflush(NULL) and getline          popen      popen and pclose
 *   dlopen     dlopen and dlclose                getaddrinfo
 *   create     pthread_create                    setlocale
 *   all        all of these at once
 *   handler    a fork handler inside the library's own waits until another thread has allocated and freed
 * A fork that does not come back within 20 s is a deadlock. */
#include "check.h"
#include <dlfcn.h>
#include <locale.h>
#include <malloc.h>
#include <netdb.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/socket.h>

static _Atomic int stop;
static _Atomic long work;
static const char *mode;
static char lines_name[64];

static void some_objects(uint64_t *seed)
{
    enum { COUNT = 24 };
    unsigned char *p[COUNT];
    size_t n[COUNT];
    for (int i = 0; i < COUNT; i++) {
        n[i] = log_size(seed, i % 12 ? 10 : 19);
        CHECK((p[i] = malloc(n[i])));
        fill(p[i], n[i], i);
    }
    for (int i = 0; i < COUNT; i++) { VERIFY(p[i], n[i], i); free(p[i]); }
}

static void flush(uint64_t *seed) { CHECK(fflush(NULL) == 0); if (rnd(seed) % 64 == 0) some_objects(seed); }

static void read_lines(uint64_t *seed)
{
    FILE *f = fopen(lines_name, "r");
    CHECK(f);
    for (int i = 0; i < 50; i++) {
        char *line = NULL;
        size_t n = 0;
        CHECK(getline(&line, &n, f) == 3001 && line[0] == 'a' && line[2999] == 'a');
        free(line);
    }
    fclose(f);
    some_objects(seed);
}

static void run_command(uint64_t *seed)
{
    char line[16] = "";
    some_objects(seed);
    FILE *f = popen("echo ebb", "r");
    CHECK(f && fgets(line, sizeof line, f) && !strcmp(line, "ebb\n"));
    CHECK(pclose(f) == 0);
}

static void load(uint64_t *seed)
{
    void *library = dlopen("librt.so.1", RTLD_NOW);
    CHECK(library, "%s", dlerror());
    some_objects(seed);
    dlclose(library);
}

static void resolve(uint64_t *seed)
{
    struct addrinfo *all = NULL, hints = { .ai_socktype = SOCK_STREAM };
    if (getaddrinfo("localhost", "80", &hints, &all) == 0) freeaddrinfo(all);
    some_objects(seed);
}

static void *short_life(void *arg)
{
    uint64_t seed = (uintptr_t)arg;
    some_objects(&seed);
    return NULL;
}

static void create(uint64_t *seed)
{
    pthread_t t;
    CHECK(pthread_create(&t, NULL, short_life, (void *)(uintptr_t)rnd(seed)) == 0);
    CHECK(pthread_join(t, NULL) == 0);
}

static void change_locale(uint64_t *seed)
{
    setlocale(LC_ALL, rnd(seed) % 2 ? "C" : "C.UTF-8");
    some_objects(seed);
}

static const struct { const char *name; void (*act)(uint64_t *); } acts[] = {
    { "flush", flush }, { "flush", read_lines }, { "popen", run_command }, { "dlopen", load },
    { "getaddrinfo", resolve }, { "create", create }, { "setlocale", change_locale },
};
enum { ACTS = sizeof acts / sizeof *acts };

static void *actor(void *arg)
{
    uint64_t seed = (uintptr_t)arg + 1;
    while (!stop) { acts[(uintptr_t)arg].act(&seed); work++; }
    return NULL;
}

static void fork_once(int i)
{
    alarm(20);
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        uint64_t seed = i;
        some_objects(&seed);
        FILE *f = fopen("/dev/null", "w");
        CHECK(f && fprintf(f, "%d", i) > 0 && fclose(f) == 0);
        _exit(0);
    }
    must_end_well(pid);
}

static void late(int signal)
{
    (void)signal;
    static const char text[] = "FAIL forklocks.c: deadlock, a fork took 20 s\n";
    if (write(2, text, sizeof text - 1) < 0) _exit(3);
    _exit(1);
}

static void beside(int forks)
{
    pthread_t t[ACTS];
    int used[ACTS] = {0};
    for (uintptr_t i = 0; i < ACTS; i++)
        if (!strcmp(mode, "all") || !strcmp(mode, acts[i].name)) {
            CHECK(pthread_create(&t[i], NULL, actor, (void *)i) == 0);
            used[i] = 1;
        }
    for (int i = 0; i < forks; i++) fork_once(i);
    alarm(0);
    stop = 1;
    for (int i = 0; i < ACTS; i++)
        if (used[i]) pthread_join(t[i], NULL);
    CHECK(work > 0);
}

/* What the thread does while the fork waits for it. */
enum { KEPT = 60 };
static unsigned char *kept[KEPT];
static size_t kept_n[KEPT];
static int ready;
static _Atomic int asked, answered;

static void do_all_kinds(int round)
{
    static uint64_t seed = 5;
    for (int i = 0; i < KEPT; i++) {
        if (kept[i]) { VERIFY(kept[i], kept_n[i], i); free(kept[i]); }
        kept_n[i] = log_size(&seed, i % 20 ? 12 : 22);
        if (i % 5 == 1) {
            kept[i] = memalign(4096, kept_n[i]);
            CHECK(kept[i] && (uintptr_t)kept[i] % 4096 == 0);
        } else if (i % 5 == 2) {
            kept[i] = calloc(1, kept_n[i]);
            CHECK(kept[i] && not_zero(kept[i], kept_n[i]) < 0);
        } else CHECK((kept[i] = malloc(kept_n[i])));
        fill(kept[i], kept_n[i], i);
        CHECK(malloc_usable_size(kept[i]) >= kept_n[i]);
        if (i % 3 == round % 3) {
            size_t n = kept_n[i] * 2 + 5;
            unsigned char *more = realloc(kept[i], n);
            CHECK(more && wrong(more, kept_n[i], kept_n[i], i) < 0);
            kept[i] = more;
            kept_n[i] = n;
            fill(more, n, i);
        }
    }
}

static void *answerer(void *arg)
{
    while (!stop)
        if (asked != answered) { do_all_kinds(asked); answered = asked; }
    return arg;
}

/* Inside of the library's own handlers: the heap is stopped now. */
static void ask(void)
{
    if (!ready) return;
    asked++;
    while (answered != asked) {}
}
static void check_kept(void)
{
    if (ready)
        for (int i = 0; i < KEPT; i++) if (kept[i]) VERIFY(kept[i], kept_n[i], i);
}
static void register_early(void) { pthread_atfork(ask, check_kept, check_kept); }
__attribute__((section(".preinit_array"), used)) static void (*early)(void) = register_early;

static void with_a_handler(int forks)
{
    pthread_t t;
    CHECK(pthread_create(&t, NULL, answerer, NULL) == 0);
    ready = 1;
    for (int i = 0; i < forks; i++) {
        alarm(20);
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            for (int k = 0; k < KEPT; k++) { VERIFY(kept[k], kept_n[k], k); free(kept[k]); }
            churn(i, 500, 50, 16);
            if (i % 8 == 0) {
                /* The child forks beside a thread of its own. */
                memset(kept, 0, sizeof kept);
                CHECK(pthread_create(&t, NULL, answerer, NULL) == 0);
                fork_once(i);
            }
            _exit(0);
        }
        must_end_well(pid);
        do_all_kinds(i);
    }
    alarm(0);
    ready = 0;
    stop = 1;
    pthread_join(t, NULL);
    for (int k = 0; k < KEPT; k++) { VERIFY(kept[k], kept_n[k], k); free(kept[k]); }
}

int main(int argc, char **argv)
{
    mode = argc > 1 ? argv[1] : "all";
    int forks = argc > 2 ? atoi(argv[2]) : 300;
    signal(SIGALRM, late);
    snprintf(lines_name, sizeof lines_name, "/tmp/forklocks.%d", (int)getpid());
    FILE *f = fopen(lines_name, "w");
    CHECK(f);
    for (int i = 0; i < 50 * 3001; i++) fputc(i % 3001 == 3000 ? '\n' : 'a', f);
    CHECK(fclose(f) == 0);
    if (!strcmp(mode, "handler")) with_a_handler(forks);
    else beside(forks);
    unlink(lines_name);
    churn(9, 2000, 200, 16);
    return passed();
}
