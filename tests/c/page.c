/* The statistics page where much comes or goes and nothing follows, and what that costs: page DIR. Without workers, with
 * dev=lockstat:on. */
#include "stats.h"
#include <sys/mman.h>

static volatile struct ebb_stats *page;

static void is_live(size_t mib, size_t slack_mib)
{
    size_t said = page->live_bytes / MIB;
    CHECK(said <= mib + slack_mib && said + slack_mib >= mib, "%zu MiB are live, not %zu", said, mib);
}

int main(int argc, char **argv)
{
    char path[256];
    CHECK(argc > 1);
    snprintf(path, sizeof path, "%s/%d.ebb", argv[1], (int)getpid());
    free(malloc(1));
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0, "%s", path);
    uint64_t *words = mmap(NULL, 8192, PROT_READ, MAP_SHARED, fd, 0);
    CHECK(words != MAP_FAILED);
    page = (struct ebb_stats *)(words + 1);

    enum { N = 8, SMALL = 1000 };
    static char *large[N], *small[SMALL];
    for (int i = 0; i < N; i++) CHECK((large[i] = malloc(64 * MIB)));
    is_live(512, 20);
    CHECK(page->large_bytes >= 500 * MIB && page->large_bytes <= page->live_bytes, "%zu large", (size_t)page->large_bytes);
    CHECK((large[0] = realloc(large[0], 100 * MIB)));
    is_live(548, 20);
    memset(large[0], 1, 100 * MIB);
    for (int i = 0; i < N; i++) free(large[i]);
    is_live(0, 20);
    CHECK(page->dirty_bytes >= 100 * MIB);

    for (int i = 0; i < SMALL; i++) CHECK((small[i] = malloc(100 * KIB)));
    CHECK((large[0] = malloc(64 * MIB)));
    is_live(98 + 64, 30);
    for (int i = 0; i < SMALL; i++) free(small[i]);
    is_live(64, 30);
    free(large[0]);

    enum { PAIRS = 10000 };
    uint64_t before = stats().lock_acquisitions;
    for (int i = 0; i < PAIRS; i++) {
        void *volatile p = malloc(16 * MIB);
        CHECK(p);
        free(p);
    }
    uint64_t each = (stats().lock_acquisitions - before) / PAIRS;
    CHECK(each < 160, "%zu locks a pair", (size_t)each);
    return passed();
}
