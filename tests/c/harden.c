/* Tests that correct programs work with harden=on: harden TOPIC. */
#include "check.h"
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

/* Freed memory is not handed out at once: not among the next `distance` allocations of its size. */
static void delay(size_t n, int distance)
{
    static uintptr_t seen[4096];
    CHECK(distance <= 4096);
    for (int i = 0; i < 20000; i++) {
        void *p = malloc(n);
        CHECK(p);
        for (int k = 0; k < distance; k++) CHECK(seen[k] != (uintptr_t)p, "%p again after less than %d", p, distance);
        memset(p, i, n);
        seen[i % distance] = (uintptr_t)p;
        free(p);
    }
}

/* The usable size is what was asked for, in every way to ask, and all of it may be written. */
static void sizes(void)
{
    for (size_t n = 0; n < 300000; n += n / 50 + 1) {
        void *p[5] = {malloc(n), calloc(1, n), memalign(64, n), memalign(8192, n), realloc(malloc(5), n ? n : 1)};
        for (int i = 0; i < 5; i++) {
            size_t has = malloc_usable_size(p[i]);
            CHECK(has >= n && has < 2 * n + 3 * PAGE, "%zu for %zu", has, n);
            if (i == 1) CHECK(not_zero(p[i], n) < 0, "calloc of %zu", n);
            memset(p[i], 0xff, has);
        }
        p[0] = realloc(p[0], n + n / 4 + 1);
        CHECK(p[0] && malloc_usable_size(p[0]) >= n + n / 4 + 1);
        for (size_t i = 0; i < n; i++) CHECK(((unsigned char *)p[0])[i] == 0xff, "byte %zu of %zu", i, n);
        memset(p[0], 1, malloc_usable_size(p[0]));
        for (int i = 0; i < 5; i++) free(p[i]);
    }
}

/* Objects are freed, wait until they are whole pages that the kernel has back, and are used again. */
static void released(double seconds)
{
    enum { COUNT = 60000 };
    static char *p[COUNT];
    uint64_t s = 7;
    for (double end = now() + seconds; now() < end;) {
        size_t n = log_size(&s, 12);
        for (int i = 0; i < COUNT / (int)(n / 64 + 1); i++) {
            p[i] = rnd(&s) % 2 ? malloc(n) : calloc(1, n);
            memset(p[i], 0x11, n);
        }
        for (int i = 0; i < COUNT / (int)(n / 64 + 1); i++)
            if (i % 97) { free(p[i]); p[i] = NULL; }
        if (rnd(&s) % 4 == 0) usleep(40000);
        if (rnd(&s) % 4 == 0) malloc_trim(0);
        for (int i = 0; i < COUNT; i++) { free(p[i]); p[i] = NULL; }
    }
}

static _Atomic int stop;

static void *pairs(void *arg)
{
    while (!atomic_load_explicit(&stop, memory_order_relaxed))
        for (int i = 0; i < 1000; i++) { void *volatile p = malloc(32); free(p); }
    return arg;
}

/* Children of a process whose threads free all the time, at every moment of that; each frees on every CPU. */
static void forks(int count)
{
    pthread_t t[3];
    for (int i = 0; i < 3; i++) CHECK(pthread_create(&t[i], NULL, pairs, NULL) == 0);
    for (int i = 0; i < count; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            alarm(20);
            for (int cpu = 0; cpu < 8; cpu++) {
                cpu_set_t one;
                CPU_ZERO(&one);
                CPU_SET(cpu, &one);
                if (sched_setaffinity(0, sizeof one, &one) == 0)
                    for (int k = 0; k < 50; k++) { void *volatile p = malloc(32); free(p); }
            }
            _exit(0);
        }
        must_end_well(pid);
    }
    stop = 1;
    for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
}

/* Mappings of a page each, until the process may have no more. */
static char *fill_mappings(size_t most)
{
    char *pages = mmap(NULL, (most + 1) * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    CHECK(pages != MAP_FAILED);
    size_t i = 0;
    while (i < most && mprotect(pages + i * PAGE, PAGE, i % 2 ? PROT_READ : PROT_READ | PROT_WRITE) == 0) i++;
    CHECK(i < most && errno == ENOMEM, "%zu mappings: %s", i, strerror(errno));
    return pages;
}

/* Access is taken from freed memory in two mappings: from the first one, and no further. The place serves again. */
static void closed_in_part(void)
{
    enum { BYTES = MIB, TIMES = 64 };
    unsigned long most = 0;
    FILE *file = fopen("/proc/sys/vm/max_map_count", "r");
    if (!file || fscanf(file, "%lu", &most) != 1 || most > 1 << 20) {
        skipped("vm.max_map_count is unknown, or above 1048576");
        return;
    }
    fclose(file);
    char *block = malloc(BYTES), *behind = malloc(BYTES); /* not at the end of the memory with access */
    CHECK(block && behind);
    memset(block, 1, BYTES);
    CHECK(madvise(block, BYTES / 2, MADV_DONTDUMP) == 0);
    char *pages = fill_mappings(most);
    free(block);
    munmap(pages, (most + 1) * PAGE);
    int seen = 0;
    for (int i = 0; i < TIMES; i++) {
        char *again = malloc(BYTES);
        CHECK(again);
        memset(again, 2, BYTES);
        seen += again == block;
    }
    CHECK(seen == 1, "it was not refused");
}

/* Bytes of anonymous memory of this process. */
static size_t anonymous(void)
{
    char line[256];
    size_t kib = 0;
    FILE *file = fopen("/proc/self/status", "r");
    CHECK(file);
    while (fgets(line, sizeof line, file))
        if (sscanf(line, "RssAnon: %zu", &kib) == 1) break;
    fclose(file);
    return kib * KIB;
}

/* A server's process: connections that hold buffers while others come and go, and then nothing. */
static void serve(double busy, int pause)
{
    enum { CONNECTIONS = 16 };
    static const size_t sizes[] = {4096, 4096, 1024, 512, 256, 200, 100, 64, 48, 24, 2048, 16384};
    enum { BUFFERS = sizeof sizes / sizeof sizes[0] };
    static void *held[CONNECTIONS][BUFFERS];
    uint64_t s = 3;
    for (double end = now() + busy; now() < end;)
        for (int i = 0; i < 100; i++) {
            void **connection = held[rnd(&s) % CONNECTIONS];
            for (int k = 0; k < BUFFERS; k++) {
                free(connection[k]);
                CHECK((connection[k] = malloc(sizes[k])));
                memset(connection[k], k, sizes[k]);
            }
        }
    for (int i = 1; i < CONNECTIONS; i++)
        for (int k = 0; k < BUFFERS; k++) free(held[i][k]);
    sleep(pause);
}

/* Prints the memory of four such processes after their work, in bytes. */
static void idle(void)
{
    enum { PROCESSES = 4 };
    int ends[2];
    pid_t pids[PROCESSES];
    CHECK(pipe(ends) == 0);
    for (int i = 0; i < PROCESSES; i++) {
        CHECK((pids[i] = fork()) >= 0);
        if (pids[i] == 0) {
            serve(1.5, 5);
            size_t bytes = anonymous();
            CHECK(write(ends[1], &bytes, sizeof bytes) == sizeof bytes);
            _exit(0);
        }
    }
    size_t sum = 0, bytes;
    for (int i = 0; i < PROCESSES; i++) {
        CHECK(read(ends[0], &bytes, sizeof bytes) == sizeof bytes);
        sum += bytes;
    }
    for (int i = 0; i < PROCESSES; i++) must_end_well(pids[i]);
    printf("%zu\n", sum);
}

int main(int argc, char **argv)
{
    const char *topic = argc > 1 ? argv[1] : "";
    if (!strcmp(topic, "delay")) { delay(48, 900); delay(300, 900); delay(5000, 180); delay(200000, 4); }
    else if (!strcmp(topic, "sizes")) sizes();
    else if (!strcmp(topic, "released")) released(argc > 2 ? atof(argv[2]) : 3);
    else if (!strcmp(topic, "forks")) forks(60);
    else if (!strcmp(topic, "idle")) idle();
    else if (!strcmp(topic, "part")) closed_in_part();
    else CHECK(0, "harden TOPIC");
    return passed();
}
