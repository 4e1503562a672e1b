/* Fork handlers that allocate, registered before the library's own, so that they run inside them: atfork [threads]
 *   atfork ends      one ends the program, with status 0 */
#include "check.h"
#include <malloc.h>
#include <pthread.h>
#include <stdatomic.h>

enum { KEPT = 400, LIVE = 64 * MIB };
static unsigned char *kept[KEPT];
static size_t kept_n[KEPT];
static _Atomic int stop;
static int ready, ends, calls[3];

/* Every kind of call; what one handler allocates, another one frees. */
static void at_work(int phase)
{
    static uint64_t seed = 3;
    calls[phase]++;
    if (ends) exit(passed());
    if (!ready) return;
    for (int i = 0; i < KEPT; i++) {
        if (kept[i]) { VERIFY(kept[i], kept_n[i], i); free(kept[i]); }
        kept_n[i] = log_size(&seed, i % 40 ? 13 : 21);
        CHECK((kept[i] = i % 3 ? malloc(kept_n[i]) : memalign(256, kept_n[i])));
        fill(kept[i], kept_n[i], i);
    }
    unsigned char *grows = calloc(1, 100);
    CHECK(grows && not_zero(grows, 100) < 0);
    for (size_t n = 100; n < 4 * MIB; n *= 3) CHECK((grows = realloc(grows, n)));
    free(grows);
    if (calls[phase] % 8 == 0) malloc_trim(0);
    CHECK(mallinfo2().arena > 0);
}

static void prepare(void) { at_work(0); }
static void parent(void) { at_work(1); }
static void child(void) { at_work(2); }

/* Before any constructor, and before the first allocation. */
static void register_early(void) { pthread_atfork(prepare, parent, child); }
__attribute__((section(".preinit_array"), used)) static void (*early)(void) = register_early;

static void *busy(void *arg)
{
    churn((uintptr_t)arg, 2000, 100, 14);
    while (!stop) churn((uintptr_t)arg, 2000, 100, 14);
    return NULL;
}

int main(int argc, char **argv)
{
    int is_last = argc > 1 && is(argv[1], "ends"), threads = argc > 1 && !is_last ? number(argv[1]) : 0;
    pthread_t t[16];
    churn(1, 3000, 300, 16);
    if (is_last) {
        ends = 1;
        fork();
        CHECK(0, "the handler came back");
    }
    for (int i = 0; i < threads; i++) CHECK(pthread_create(&t[i], NULL, busy, (void *)(intptr_t)(i + 1)) == 0);
    void *live = malloc(LIVE);
    CHECK(live);
    ready = 1;
    for (int i = 0; i < 15; i++) {
        pid_t pid = fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            CHECK(calls[0] == i + 1 && calls[1] == i && calls[2] == 1);
            CHECK(mallinfo2().hblkhd >= LIVE, "the fork was not prepared: the child gave the heap up");
            churn(i + 2, 1000, 100, 16);
            for (int k = 0; k < KEPT; k++) VERIFY(kept[k], kept_n[k], k);
            _exit(0);
        }
        must_end_well(pid);
        churn(i + 2, 1000, 100, 16);
    }
    free(live);
    stop = 1;
    for (int i = 0; i < threads; i++) pthread_join(t[i], NULL);
    for (int k = 0; k < KEPT; k++) VERIFY(kept[k], kept_n[k], k);
    return passed();
}
