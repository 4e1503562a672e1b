/* System calls that start to be refused, from the start or later:
 *   sandbox start|later SET[,SET...] [ERRNO [back]]     SET: membarrier madvise process_madvise clone mremap all
 * ERRNO is a number, 1 (EPERM) if absent; 0 lets the call do nothing and say so. `start` installs the filter and
 * executes itself; `later` works with threads first. With `back`, memory must go back nevertheless. */
#include "filter.h"
#include <malloc.h>
#include <pthread.h>

static int wants(const char *sets, const char *name)
{
    size_t n = strlen(name);
    for (const char *s = sets; s; s = strchr(s, ',') ? strchr(s, ',') + 1 : NULL)
        if ((!strncmp(s, name, n) && (s[n] == ',' || !s[n])) || !strncmp(s, "all", 3)) return 1;
    return 0;
}

static void refuse(const char *sets, int error)
{
    static const struct { const char *name; int nr; } calls[] = {
        {"membarrier", SYS_membarrier}, {"madvise", SYS_madvise},
        {"process_madvise", SYS_process_madvise}, {"clone", SYS_clone}, {"clone", SYS_clone3},
        {"mremap", SYS_mremap}, {"close_range", SYS_close_range} };
    int refused[sizeof calls / sizeof *calls + 1], n = 0;
    for (unsigned i = 0; i < sizeof calls / sizeof *calls; i++)
        if (wants(sets, calls[i].name)) refused[n++] = calls[i].nr;
    refused[n] = -1;
    promise();
    answer_calls(refused, SECCOMP_RET_ERRNO | error, SECCOMP_FILTER_FLAG_TSYNC);
}

static int rest_us = 1200000;

/* Small and large objects, peaks that fall, rests in which workers would act. */
static void work(int seed)
{
    churn(seed, 30000, 500, 15);
    for (int r = 0; r < 3; r++) {
        size_t n = 100 * MIB;
        char *p = filled(n);
        CHECK((p = realloc(p, 2 * n)) && p[n - 1] == 7);
        CHECK((p = realloc(p, n / 2)) && p[n / 2 - 1] == 7);
        free(p);
        CHECK((p = calloc(1, n)) && not_zero(p, n) < 0);
        free(p);
        usleep(r == 1 ? rest_us : 10000);
        churn(seed + r, 20000, 300, 16);
    }
}

static void *thread(void *arg) { churn((uintptr_t)arg, 60000, 300, 14); return NULL; }

/* What was given back reads zero, or it was not. */
static void comes_back_zero(void)
{
    static const size_t sizes[] = {300000, 3 * MIB, 100 * MIB};
    for (int i = 0; i < 3; i++) {
        char *p = filled(sizes[i]);
        free(p);
        malloc_trim(0);
        CHECK((p = calloc(1, sizes[i])) && not_zero(p, sizes[i]) < 0, "%zu bytes", sizes[i]);
        free(p);
    }
}

int main(int argc, char **argv)
{
    CHECK(argc >= 3 && argc <= 5, "sandbox start|later|inside SETS [ERRNO [back]]");
    int error = argc > 3 ? atoi(argv[3]) : EPERM;
    size_t start = resident();
    if (argc > 4) rest_us = 200000;
    if (is(argv[1], "start")) {
        refuse(argv[2], error);
        argv[1] = "inside";
        execv("/proc/self/exe", argv);
        CHECK(0, "exec");
    }
    if (is(argv[1], "later")) {
        pthread_t t[4];
        for (int i = 0; i < 4; i++) CHECK(!pthread_create(&t[i], NULL, thread, (void *)(intptr_t)i));
        work(1);
        refuse(argv[2], error);
        for (int i = 0; i < 4; i++) pthread_join(t[i], NULL);
    }
    work(2);
    if (argc > 4) {
        char *p;
        work_until_back(start);
        CHECK((p = calloc(1, 100 * MIB)) && not_zero(p, 100 * MIB) < 0);
        free(p);
    }
    comes_back_zero();
    return passed();
}
