/* Huge pages that hold freed memory: huge_pages MODE
 *   split    the huge pages behind depopulated spans are split, so that the system gets the memory
 *   khuge    khugepaged leaves depopulated spans alone (as root, with a fast scan)
 *   held     huge pages shared with a forked child are held, and go back when the child is gone; children that skip the
 *            fork handlers are not harmed by it */
#include "sparse.h"
#include "stats.h"
#include <signal.h>
#include <sys/syscall.h>

/* Whether the page at p is part of a huge page, by the kernel's own flags; -1: not to be had. */
static int in_huge_page(const void *p)
{
    enum { THP = 22 };
    static int map = -1, flags = -1;
    uint64_t entry, flag;
    if (map < 0) map = open("/proc/self/pagemap", O_RDONLY);
    if (flags < 0) flags = open("/proc/kpageflags", O_RDONLY);
    if (pread(map, &entry, 8, (uintptr_t)p / PAGE * 8) != 8 || !(entry >> 63)) return -1;
    uint64_t frame = entry & ((1ull << 55) - 1);
    if (!frame || pread(flags, &flag, 8, frame * 8) != 8) return -1;
    return flag >> THP & 1;
}

/* 32 MiB of which one page in each 2 MiB is there. */
static char *sparse(void)
{
    char *p = mmap(NULL, 34 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    p = (char *)(((uintptr_t)p + 2 * MIB - 1) & ~(2 * MIB - 1));
    madvise(p, 32 * MIB, MADV_NOHUGEPAGE);
    for (int i = 0; i < 16; i++) p[i * 2 * MIB] = 1;
    madvise(p, 32 * MIB, MADV_HUGEPAGE);
    return p;
}

static int split(size_t start)
{
    char *control = mmap(NULL, 4 * MIB, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    control = (char *)(((uintptr_t)control + 2 * MIB - 1) & ~(2 * MIB - 1));
    madvise(control, 2 * MIB, MADV_HUGEPAGE);
    memset(control, 1, 2 * MIB);
    madvise(control, MIB, MADV_DONTNEED);
    if (in_huge_page(control + MIB) != 1) return skipped("no huge pages, or no way to see them");
    size_t live = fill_and_free(4096, 65536, 384 * MIB);
    wait_below(start + live + live / 6 + 24 * MIB, 8);
    size_t huge = 0, pages = 0;
    for (size_t i = 0; i < count; i++)
        for (size_t at = 0; objects[i] && at < sizes[i]; at += PAGE, pages++) huge += in_huge_page(objects[i] + at) == 1;
    CHECK(pages > 5000 && huge < pages / 50, "%zu of %zu pages are in huge pages", huge, pages);
    verify();
    return passed();
}

static int khugepaged(size_t start)
{
    size_t live = fill_and_free(4096, 65536, 256 * MIB);
    wait_below(start + live + live / 6 + 24 * MIB, 8);
    size_t low = resident();
    /* It has been here when it has filled what is like that and not guarded: twice, to be sure. */
    for (int round = 0; round < 2; round++) {
        char *control = sparse();
        int i = 0;
        while (i < 1500 && in_huge_page(control + 30 * MIB) != 1) usleep(10000), i++;
        if (i == 1500) return skipped("khugepaged does not come here");
    }
    CHECK(resident() < low + 64 * MIB + low / 20, "%zu after khugepaged, %zu before", resident(), low);
    verify();
    return passed();
}

static int held(void)
{
    fill_and_free(4096, 16384, 256 * MIB);
    pid_t sharer = fork();
    if (sharer == 0) { alarm(50); pause(); _exit(0); }
    for (int i = 0; i < 300 && !stats().unsplit_bytes; i++) usleep(10000);
    if (!stats().unsplit_bytes) { kill(sharer, SIGKILL); return skipped("nothing is held"); }
    /* All that stays is told of, whichever span was the first of its block to be tried. One zone only. */
    for (int i = 0; top - base < 8 * GIB && stats().unsplit_bytes < left_behind() * PAGE / 4 * 3; i++) {
        CHECK(i < 2000, "%zu of %zu MiB are told of", stats().unsplit_bytes / MIB, left_behind() * PAGE / MIB);
        usleep(10000);
    }
    pid_t pid = syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
    if (pid == 0) {
        for (int i = 0; i < 4; i++) { free(filled(64 * MIB)); usleep(600000); }
        churn(1, 3000, 300, 16);
        verify();
        _exit(0);
    }
    must_end_well(pid);
    CHECK(kill(sharer, SIGKILL) == 0 && waitpid(sharer, NULL, 0) == sharer);
    for (int i = 0; i < 3000 && stats().unsplit_bytes; i++) usleep(10000);
    CHECK(stats().unsplit_bytes == 0, "%zu bytes stay held", stats().unsplit_bytes);
    verify();
    return passed();
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    size_t start = resident();
    if (is(mode, "split")) return split(start);
    if (is(mode, "khuge")) return khugepaged(start);
    if (is(mode, "held")) return held();
    CHECK(0, "huge_pages MODE");
}
