/* Tests ebb_release(): release MODE
 *   pages    it releases every page of freed objects, and nothing else
 *   shared [FILE]  its result agrees with the system's figures, while a child shares the huge pages and after that; FILE is
 *            the usage file of the memory cgroup */
#include "process.h"
#include "sparse.h"
#include "stats.h"
#include <signal.h>

static int pages(void)
{
    size_t alive = fill_and_free(1024, 32768, 192 * MIB), before = resident(), said = release(), left = left_behind();
    printf("%zu KiB of %zu left, %zu of %zu pages without a live byte\n", resident() / 1024, before / 1024, left, (top - base) / PAGE);
    CHECK(said > 64 * MIB && left < alive / PAGE / 50 + 256, "%zu pages without a live byte are there", left);
    verify();
    for (int i = 0; i < 3; i++) {
        unsigned char *z = calloc(1, 64 * MIB), *small[256];
        CHECK(z && not_zero(z, 64 * MIB) < 0);
        for (int j = 0; j < 256; j++) CHECK((small[j] = calloc(1, 20000)) && not_zero(small[j], 20000) < 0);
        memset(z, 1, 64 * MIB);
        for (int j = 0; j < 256; j++) free(memset(small[j], 1, 20000));
        free(z);
        release();
        verify();
    }
    return passed();
}

static int shared(const char *usage)
{
    if (PAGE > 4096) return skipped("huge pages are not used");
    fill_and_free(4096, 16384, 256 * MIB);
    pid_t sharer = fork();
    if (sharer == 0) { alarm(40); pause(); _exit(0); }
    size_t before = usage ? number_in(usage) : 0, most = resident(), said = release();
    size_t now = usage ? number_in(usage) : 0, fell = most - resident();
    printf("said %zu MiB, RSS fell by %zu, held %zu\n", said / MIB, fell / MIB, stats().unsplit_bytes / MIB);
    fflush(stdout);
    if (stats().unsplit_bytes < 64 * MIB && fell < 64 * MIB) { kill(sharer, SIGKILL); return skipped("no huge pages"); }
    /* Where the heap begins there are 16 MiB of small pages; those count, and go with the child. */
    CHECK(stats().unsplit_bytes > 64 * MIB && said < 32 * MIB && fell < 32 * MIB, "a shared huge page counts as given back");
    if (usage) CHECK(said < before - now + 48 * MIB, "the system got %zd MiB", (ssize_t)(before - now) / (ssize_t)MIB);
    verify();
    CHECK(kill(sharer, SIGKILL) == 0 && waitpid(sharer, NULL, 0) == sharer);
    for (int i = 0; i < 1000 && stats().unsplit_bytes; i++) { usleep(10000); said += release(); }
    CHECK(stats().unsplit_bytes == 0 && said > 128 * MIB, "%zu MiB in all", said / MIB);
    CHECK(resident() < most - 128 * MIB);
    if (usage) {
        size_t got = before - number_in(usage);
        CHECK(said < got + 32 * MIB && got < said + 32 * MIB, "said %zu MiB, the system got %zu", said / MIB, got / MIB);
    }
    verify();
    return passed();
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (is(mode, "pages")) return pages();
    if (is(mode, "shared")) return shared(argc > 2 ? argv[2] : NULL);
    CHECK(0, "release MODE");
}
