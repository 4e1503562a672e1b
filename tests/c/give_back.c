/* Memory that comes back without a call: give_back MODE
 *   large    one block of 512 MiB: free() only marks, then RSS falls while the program sleeps
 *   objects  4 to 64 KiB, 10 of 11 freed: RSS falls to what lives, survivors keep their content
 *   small    64 to 512 B, 10 of 11 freed: RSS falls to the pages with a live byte
 *   loop     temporaries of 128 MiB: no page faults from the second round on, then all comes back
 *   slack    what a large block has behind it to grow into does not keep memory
 *   mlock    memory that the program locks as it comes goes back too, what was never touched as well
 *   fork     children of a parent whose workers are at it find everything whole
 *   clone    as `fork`, children that skip the handlers
 *   busy     caches of a program that goes on with a little of everything do not keep what it once needed */
#include "sparse.h"
#include "stats.h"
#include <signal.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static void large_block(size_t start)
{
    free(filled(512 * MIB));
    printf("back after %.2f s\n", wait_below(start + 16 * MIB, 6));
}

static void freed_at_random(size_t start, int small)
{
    size_t live = small ? fill_and_free(64, 512, 192 * MIB) : fill_and_free(4096, 65536, 384 * MIB);
    size_t base = start + count * (sizeof *objects + sizeof *sizes) + (2 << 20);
    printf("back after %.2f s\n", wait_below(base + live + live / (small ? 20 : 6) + 12 * MIB, 8));
    verify();
    usleep(300000);
    verify();
    churn(3, 20000, 500, 16);
    verify();
}

static long faults(void)
{
    struct rusage use;
    getrusage(RUSAGE_SELF, &use);
    return use.ru_minflt;
}

static void loop(size_t start)
{
    long last = 0;
    for (int round = 0; round < 8; round++) {
        long before = faults();
        char *p = malloc(128 * MIB);
        for (size_t i = 0; i < 128 * MIB; i += PAGE) p[i] = round;
        free(p);
        last = faults() - before;
    }
    CHECK(last < 100, "%ld page faults in the last round", last);
    wait_below(start + 16 * MIB, 6);
}

static void slack(size_t start)
{
    free(filled(512 * MIB));
    char *p = malloc(128 * MIB);
    wait_below(start + (128 + 16) * MIB, 6);
    CHECK((p = realloc(p, 400 * MIB)));
    memset(p, 1, 400 * MIB);
    CHECK((p = realloc(p, 20 * MIB)));
    wait_below(start + (20 + 16) * MIB, 6);
    free(p);
    wait_below(start + 16 * MIB, 6);
}

static void locked(void)
{
    free(malloc(100000));
    CHECK(mlockall(MCL_CURRENT | MCL_FUTURE) == 0);
    size_t start = resident();
    for (int round = 0; round < 2; round++) {
        unsigned char *p = malloc(200 * MIB);
        memset(p, 1, 100 * MIB);
        free(p);
        wait_below(start + 24 * MIB, 6);
        CHECK((p = calloc(1, 64 * MIB)) && not_zero(p, 64 * MIB) < 0);
        free(p);
    }
    CHECK(stats().dirty_bytes < 80 * MIB);
}

static void children(int raw)
{
    fill_and_free(4096, 65536, 128 * MIB);
    for (int round = 0; round < 40; round++) {
        free(memset(malloc(96 * MIB), round, 96 * MIB));
        usleep(round * 997 % 40000);
        pid_t pid = raw ? (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) : fork();
        CHECK(pid >= 0);
        if (pid == 0) {
            verify();
            unsigned char *z = calloc(1, 64 * MIB);
            for (size_t i = 0; i < 64 * MIB; i += 512) CHECK(z[i] == 0, "dirty at %zu", i);
            free(z);
            churn(round, 3000, 300, 20);
            verify();
            _exit(0);
        }
        churn(round, 2000, 200, 18);
        must_end_well(pid);
    }
    verify();
}

static void busy(void)
{
    enum { MANY = 1 << 16, FEW = 200 };
    static char *all[MANY], *few[FEW];
    for (int i = 0; i < MANY; i++) all[i] = memset(malloc(48 + i * 37 % 3000), 1, 48);
    for (int i = 0; i < MANY; i++) free(all[i]);
    size_t much = stats().cached_bytes, now = much;
    int cpus = sysconf(_SC_NPROCESSORS_ONLN);
    /* Never the same twice, so neither a CPU nor a class is idle. */
    for (int turn = 0; turn < 1000 && now > 3 * MIB; turn++) {
        if (cpus > 1 && !try_pin(turn % 2)) skipped("no such CPU");
        for (int i = 0; i < FEW; i++) {
            free(few[i]);
            few[i] = (turn + i) % 3 ? malloc(48 + (turn + i) * 37 % 3000) : NULL;
        }
        usleep(10000);
        now = stats().cached_bytes;
    }
    CHECK(much > 6 * MIB && now <= 3 * MIB, "%zu of %zu KiB stay cached", now / 1024, much / 1024);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    size_t start = resident();
    if (is(mode, "large")) large_block(start);
    else if (is(mode, "objects")) freed_at_random(start, 0);
    else if (is(mode, "small")) freed_at_random(start, 1);
    else if (is(mode, "loop")) loop(start);
    else if (is(mode, "slack")) slack(start);
    else if (is(mode, "mlock")) locked();
    else if (is(mode, "fork")) children(0);
    else if (is(mode, "clone")) children(1);
    else if (is(mode, "busy")) busy();
    else CHECK(0, "give_back MODE");
    return passed();
}
