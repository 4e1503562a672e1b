/* Programs whose allocations are known, for tests of the profile: tests/tests/profile.rs reads what they dump.
 *
 *   sites ROUNDS            one function keeps objects, another one makes 99 % of the calls and frees at once
 *   sizes ROUNDS THREADS    objects of many sizes, freed at once; prints how many of each
 *   balance THREADS         all kinds of requests in a function of their own; all is freed
 *   switch                  sampling is switched on and off beside busy threads
 *   full                    more stacks than the profile has room for
 *   files DIRECTORY         dumps to files that work and to files that do not
 *   asked PATH              a signal asks for dumps, also beside busy threads
 *   handles                 the program takes that signal for itself
 *   ignores PATH            that signal is ignored since the start
 *   deep                    stacks through recursion, a callback of the C library and a signal handler
 *   refused                 a filter refuses to read the stack
 *   forks                   children of busy threads go on with a profile of their own
 */
#include "check.h"
#include "filter.h"
#include <dlfcn.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/stat.h>

/* The test knows the functions by the sections that they are in. */
#define SITE(name) __attribute__((noinline, noclone, section("site_" #name)))
#define TELL(name) \
    do { \
        extern char __start_site_##name[], __stop_site_##name[]; \
        printf("site " #name " %p %p\n", (void *)__start_site_##name, (void *)__stop_site_##name); \
    } while (0)

static void *volatile sink;

SITE(keep) static void *keep(size_t size)
{
    char *object = malloc(size);
    CHECK(object);
    object[0] = 1;
    return object;
}

SITE(spend) static void spend(size_t size)
{
    void *volatile object = malloc(size);
    free(object);
}

SITE(many) static void many(size_t size)
{
    void *volatile object = size % 3 ? malloc(size) : calloc(1, size);
    free(object);
}

static int sites(long rounds)
{
    for (long i = 0; i < rounds; i++) {
        sink = keep(1000);
        for (int j = 0; j < 99; j++) spend(1000);
    }
    TELL(keep);
    TELL(spend);
    return passed();
}

static const size_t sizes[] = {1, 24, 96, 500, 1024, 3000, 20000, 65536, 262144, 700000};
#define SIZES (sizeof sizes / sizeof *sizes)

static void *sizes_thread(void *rounds)
{
    for (long i = 0; i < (long)rounds; i++)
        for (size_t s = 0; s < SIZES; s++)
            /* Smaller ones come more often. */
            for (size_t n = 1 + 200000 / (sizes[s] + 1000); n > 0; n--) many(sizes[s]);
    return NULL;
}

static int all_sizes(long rounds, int threads)
{
    pthread_t thread[64];
    for (int t = 0; t < threads; t++) CHECK(!pthread_create(&thread[t], NULL, sizes_thread, (void *)rounds));
    for (int t = 0; t < threads; t++) CHECK(!pthread_join(thread[t], NULL));
    for (size_t s = 0; s < SIZES; s++)
        printf("size %zu %zu\n", sizes[s], (1 + 200000 / (sizes[s] + 1000)) * rounds * threads);
    TELL(many);
    return passed();
}

static atomic_long made, ended;

/* Every kind of request and of release, with content that must stay. */
SITE(balance) static void balance(uint64_t seed, void (*sized)(void *, size_t))
{
    void *object[64] = {0};
    size_t size[64];
    for (int round = 0; round < 4000; round++) {
        size_t i = rnd(&seed) % 64, n = 1 + rnd(&seed) % (rnd(&seed) % 50 ? 3000 : 600000);
        if (!object[i]) {
            switch (rnd(&seed) % 4) {
            case 0: object[i] = malloc(n); break;
            case 1:
                object[i] = calloc(n, 1);
                CHECK(object[i] && not_zero(object[i], n) < 0, "%zu bytes of calloc", n);
                break;
            case 2: CHECK(!posix_memalign(&object[i], 16 << rnd(&seed) % 10, n)); break;
            default: object[i] = aligned_alloc(64, n);
            }
            CHECK(object[i] && malloc_usable_size(object[i]) >= n);
            atomic_fetch_add(&made, 1);
            /* The program may use what malloc_usable_size says. */
            size[i] = rnd(&seed) % 2 ? n : malloc_usable_size(object[i]);
            fill(object[i], size[i], i);
            continue;
        }
        VERIFY(object[i], size[i], i);
        if (rnd(&seed) % 2) {
            void *grown = realloc(object[i], n);
            CHECK(grown);
            CHECK(wrong(grown, size[i] < n ? size[i] : n, size[i] < n ? size[i] : n, i) < 0 || size[i] > 2 * PAGE || n > 2 * PAGE);
            object[i] = grown;
            size[i] = n;
            fill(grown, n, i);
        } else {
            /* A size that is allowed: what the object can hold. */
            if (sized && rnd(&seed) % 2) sized(object[i], malloc_usable_size(object[i]));
            else free(object[i]);
            object[i] = NULL;
            atomic_fetch_add(&ended, 1);
        }
    }
    for (int i = 0; i < 64; i++) {
        if (object[i]) atomic_fetch_add(&ended, 1);
        free(object[i]);
    }
}

static void *balance_thread(void *seed)
{
    balance((uint64_t)seed, (void (*)(void *, size_t))dlsym(RTLD_DEFAULT, "free_sized"));
    return NULL;
}

static int balanced(int threads)
{
    pthread_t thread[64];
    for (int t = 0; t < threads; t++) CHECK(!pthread_create(&thread[t], NULL, balance_thread, (void *)(uintptr_t)(t + 1)));
    for (int t = 0; t < threads; t++) CHECK(!pthread_join(thread[t], NULL));
    CHECK(made == ended && made > 1000);
    printf("made %ld\n", made);
    TELL(balance);
    return passed();
}

static int (*start)(size_t);
static void (*stop)(void);
static int (*dump)(const char *);
static int (*set_key)(const char *, const char *);
static int (*get_key)(const char *, uint64_t *);

static void find(void)
{
    start = (__typeof__(start))dlsym(RTLD_DEFAULT, "ebb_profile_start");
    stop = (__typeof__(stop))dlsym(RTLD_DEFAULT, "ebb_profile_stop");
    dump = (__typeof__(dump))dlsym(RTLD_DEFAULT, "ebb_profile_dump");
    set_key = (__typeof__(set_key))dlsym(RTLD_DEFAULT, "ebb_set");
    get_key = (__typeof__(get_key))dlsym(RTLD_DEFAULT, "ebb_get");
    CHECK(start && stop && dump && set_key && get_key);
}

static int switched(void)
{
    pthread_t thread[4];
    uint64_t rate;
    const char *const rates[] = {"1", "off", "64k", "on", "4096", "off"};
    find();
    for (int t = 0; t < 4; t++) CHECK(!pthread_create(&thread[t], NULL, balance_thread, (void *)(uintptr_t)(t + 1)));
    for (int i = 0; i < 600; i++) {
        CHECK(!set_key("profile", rates[i % 6]));
        if (i % 50 == 0) usleep(1000);
    }
    CHECK(!get_key("profile", &rate) && rate == 0);
    CHECK(set_key("profile", "0") == -1 && errno == EINVAL);
    CHECK(!start(0) && !get_key("profile", &rate) && rate == 512 * KIB);
    CHECK(start((size_t)1 << 41) == -1 && errno == EINVAL);
    stop();
    CHECK(!get_key("profile", &rate) && rate == 0);
    for (int t = 0; t < 4; t++) CHECK(!pthread_join(thread[t], NULL));
    TELL(balance);
    return passed();
}

static int full(void)
{
    char name[16];
    void *object[64];
    for (int i = 0; i < 20000; i++) {
        int n = i;
        for (int at = 0; at < 4; at++, n /= 26) name[at] = 'a' + n % 26;
        name[4] = 0;
        CHECK(!prctl(PR_SET_NAME, name, 0, 0, 0));
        if (i >= 64) free(object[i % 64]);
        object[i % 64] = keep(100);
    }
    for (int i = 0; i < 64; i++) free(object[i]);
    TELL(keep);
    return passed();
}

static int files(const char *directory)
{
    char path[256];
    struct rlimit small = {4096, RLIM_INFINITY};
    find();
    CHECK(dump("/dev/full") == -1 && errno == ENODATA, "nothing was sampled yet");
    CHECK(!start(1));
    sink = keep(5000);
    CHECK(dump("/dev/full") == -1 && errno == ENOSPC);
    CHECK(dump("/no/such/directory/x") == -1 && errno == ENOENT);
    CHECK(dump(NULL) == -1 && errno == EINVAL);
    CHECK(set_key("profile_dump", "/no/such/directory/x") == -1 && errno == EIO);
    CHECK(set_key("profile_dump", "here") == -1 && errno == EINVAL);
    CHECK(!setrlimit(RLIMIT_FSIZE, &small));
    snprintf(path, sizeof path, "%s/limited", directory);
    CHECK(dump(path) == -1 && errno == EFBIG);
    small.rlim_cur = RLIM_INFINITY;
    CHECK(!setrlimit(RLIMIT_FSIZE, &small));
    snprintf(path, sizeof path, "%s/by_key.%%p", directory);
    CHECK(!set_key("profile_dump", path));
    snprintf(path, sizeof path, "%s/dumped", directory);
    CHECK(!dump(path));
    free(sink);
    CHECK(!dump(path), "over the first");
    TELL(keep);
    return passed();
}

/* Waits until a file is whole, with requests of the least kind. */
static void await_file(const char *path)
{
    struct stat now = {0};
    off_t before = 0;
    for (int i = 0; i < 1000; i++) {
        spend(100);
        usleep(20000);
        if (stat(path, &now)) continue;
        if (now.st_size && now.st_size == before) return;
        before = now.st_size;
    }
    CHECK(0, "no %s", path);
}

static int asked(const char *path)
{
    pthread_t thread[4];
    char moved[256];
    sink = keep(5000);
    for (int i = 0; i < 2; i++) {
        CHECK(access(path, F_OK) && !raise(SIGUSR2));
        await_file(path);
        snprintf(moved, sizeof moved, "%s.%d", path, i);
        CHECK(!rename(path, moved));
        free(sink);
        sink = NULL;
    }
    for (int t = 0; t < 4; t++) CHECK(!pthread_create(&thread[t], NULL, balance_thread, (void *)(uintptr_t)(t + 1)));
    for (int i = 0; i < 200; i++) {
        CHECK(!kill(getpid(), SIGUSR2));
        usleep(500);
    }
    for (int t = 0; t < 4; t++) CHECK(!pthread_join(thread[t], NULL));
    CHECK(made == ended);
    TELL(keep);
    return passed();
}

static atomic_int handled;

static void handle(int number)
{
    handled += number == SIGUSR2;
}

static int handles(void)
{
    struct sigaction new = {.sa_handler = handle};
    sink = keep(5000);
    CHECK(!sigaction(SIGUSR2, &new, NULL) && signal(SIGUSR2, handle) == handle);
    for (int i = 0; i < 3; i++) {
        CHECK(!raise(SIGUSR2));
        for (int j = 0; j < 100; j++) spend(100000);
    }
    CHECK(handled == 3);
    return passed();
}

static int ignores(const char *path)
{
    for (int i = 0; i < 3; i++) {
        CHECK(!raise(SIGUSR2));
        for (int j = 0; j < 100; j++) spend(100000);
    }
    CHECK(access(path, F_OK));
    return passed();
}

SITE(recurse) static int recurse(int depth)
{
    if (depth == 0) {
        sink = keep(700);
        return 0;
    }
    return recurse(depth - 1) + 1;
}

SITE(compare) static int compare(const void *a, const void *b)
{
    sink = keep(800);
    return *(const int *)a - *(const int *)b;
}

SITE(handler) static void handler(int number)
{
    if (number) sink = keep(900);
}

SITE(deep) static int deep(void)
{
    int numbers[2] = {2, 1};
    CHECK(recurse(3) == 3 && recurse(100) == 100);
    qsort(numbers, 2, sizeof *numbers, compare);
    CHECK(signal(SIGUSR1, handler) != SIG_ERR && !raise(SIGUSR1));
    TELL(keep);
    TELL(recurse);
    TELL(compare);
    TELL(handler);
    TELL(deep);
    return passed();
}

static int refused(void)
{
    promise();
    answer_call(SYS_process_vm_readv, SECCOMP_RET_ERRNO | EPERM);
    for (int i = 0; i < 100; i++) sink = keep(1000);
    TELL(keep);
    return passed();
}

static void *forks_thread(void *until)
{
    while (!atomic_load((atomic_int *)until)) spend(300);
    return NULL;
}

static int forks(void)
{
    atomic_int until = 0;
    pthread_t thread[3];
    for (int t = 0; t < 3; t++) CHECK(!pthread_create(&thread[t], NULL, forks_thread, &until));
    void *before = keep(2000);
    TELL(keep);
    fflush(stdout);
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (child == 0) {
            free(before);
            for (int j = 0; j < 7; j++) sink = keep(2000);
            exit(0);
        }
        int status;
        CHECK(waitpid(child, &status, 0) == child && status == 0, "status %x", status);
    }
    atomic_store(&until, 1);
    for (int t = 0; t < 3; t++) CHECK(!pthread_join(thread[t], NULL));
    return passed();
}

int main(int argc, char **argv)
{
    CHECK(argc > 1);
    if (is(argv[1], "sites")) return sites(number(argv[2]));
    if (is(argv[1], "sizes")) return all_sizes(number(argv[2]), number(argv[3]));
    if (is(argv[1], "balance")) return balanced(number(argv[2]));
    if (is(argv[1], "switch")) return switched();
    if (is(argv[1], "full")) return full();
    if (is(argv[1], "files")) return files(argv[2]);
    if (is(argv[1], "asked")) return asked(argv[2]);
    if (is(argv[1], "handles")) return handles();
    if (is(argv[1], "ignores")) return ignores(argv[2]);
    if (is(argv[1], "deep")) return deep();
    if (is(argv[1], "refused")) return refused();
    if (is(argv[1], "forks")) return forks();
    CHECK(0, "%s", argv[1]);
}
