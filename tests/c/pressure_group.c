/* Limits of a memory cgroup, whose directory is GROUP, and other processes in it: pressure_group MODE
 *   beside N M    keeps N MiB free, without a call; another process of the group then needs M MiB
 *   cache N FILE  keeps N MiB free; another process fills the group by reading FILE: an event, far from the limit
 *   level N FILE  the same where only version 1's pressure level tells of it
 *   lowered N     keeps N MiB free while the limit of the group is lowered and raised
 *   high N        the same with memory.high, and below what is used
 *   appears N     the same in a group that had no limit
 *   both N        keeps N MiB lazy and N MiB dirty, until half of what is left is between one and both
 *   hog M, reader FILE  the other process */
#include "pressure.h"
#include <spawn.h>
#include <sys/mman.h>

/* The path of a file of the group GROUP. */
static const char *group_file(const char *name)
{
    static char path[512];
    CHECK(getenv("GROUP"), "GROUP is the directory of the group");
    snprintf(path, sizeof path, "%s/%s", getenv("GROUP"), name);
    return path;
}

static int is_v2;

static size_t used(void) { return number_in(group_file(is_v2 ? "memory.current" : "memory.usage_in_bytes")); }

static const char *limit_name(void) { return is_v2 ? "memory.max" : "memory.limit_in_bytes"; }

static void set_limit(const char *name, size_t bytes)
{
    char text[32];
    int fd = open(group_file(name), O_WRONLY | O_CLOEXEC), n = snprintf(text, sizeof text, "%zu", bytes);
    CHECK(fd >= 0 && write(fd, text, n) == n, "%s = %s", name, text);
    close(fd);
}

/* Events of memory.events (version 2), or how often the limit was met. */
static uint64_t hits(void)
{
    if (!is_v2) return number_in(group_file("memory.failcnt"));
    char text[512];
    read_text(text, sizeof text, "%s", group_file("memory.events"));
    long high = number_after(text, "high "), most = number_after(text, "max ");
    CHECK(high >= 0 && most >= 0);
    return high + most;
}

/* Takes memory without malloc, 1 MiB in 2.5 ms. */
static void hog(size_t bytes)
{
    char *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    for (size_t at = 0; at < bytes; at += MIB) { memset(p + at, 3, MIB); usleep(2500); }
}

static void reader(const char *path)
{
    static char buffer[1 << 16];
    int fd = open(path, O_RDONLY);
    CHECK(fd >= 0, "%s", path);
    for (size_t all = 0; read(fd, buffer, sizeof buffer) > 0; all += sizeof buffer)
        if (all % MIB == 0) usleep(1000);
}

/* Another process of this group. It shares no memory with this one. */
static pid_t beside(const char *mode, const char *argument)
{
    char *argv[] = {"pressure_group", (char *)mode, (char *)argument, NULL}, *none[] = {NULL};
    pid_t pid;
    CHECK(posix_spawn(&pid, "/proc/self/exe", NULL, NULL, argv, none) == 0);
    return pid;
}

static void lowered(size_t bytes)
{
    size_t base = used();
    keep_free(bytes);
    set_limit(limit_name(), 4 * bytes);
    CHECK(gone_within(bytes, 0.5) >= 0.5, "given back although the limit is far");
    set_limit(limit_name(), used() + 12 * MIB);
    double took = gone_within(bytes, 2);
    printf("%.0f ms after the limit was lowered\n", took * 1e3);
    CHECK(took < 1, "%.3f s", took);
    /* Less than what was used before, and not near what is kept now: somebody may look in between. */
    usleep(100000);
    set_limit(limit_name(), base + bytes / 4 * 3);
    set_limit(limit_name(), 8 * bytes);
    usleep(100000);
    CHECK(stats().pressure_state == 1, "short of memory before anything was");
    keep_free(bytes);
    CHECK(gone_within(bytes, 0.5) >= 0.5, "given back although the limit is far again");
}

static void other_process(size_t kept, const char *needs)
{
    keep_free(kept);
    must_end_well(beside("hog", needs));
    CHECK(resident() < kept / 2, "%zu MiB resident", resident() / MIB);
}

static int cache(size_t kept, const char *file)
{
    keep_free(kept);
    pid_t pid = beside("reader", file);
    double begin = now(), hit = 0;
    while (!hit && now() - begin < 10) {
        usleep(1000);
        /* In this order: what goes in between goes by the hit. */
        size_t there = resident();
        if (hits()) hit = now();
        CHECK(hit || there > kept, "given back before anything happened");
    }
    if (!hit) { must_end_well(pid); return skipped("pages of files do not count here"); }
    double took = gone_within(kept, 2);
    must_end_well(pid);
    printf("%.0f ms after the limit was met\n", took * 1e3);
    CHECK(took < 1, "%.3f s", took);
    CHECK(stats().limit_left_bytes > stats().limit_bytes / 4, "%lu MiB left: not by an event", stats().limit_left_bytes / MIB);
    return passed();
}

static void level(size_t kept, const char *file)
{
    keep_free(kept);
    pid_t pid = beside("reader", file);
    double took = gone_within(kept, 10);
    must_end_well(pid);
    CHECK(took < 10 && stats().pressure_state == 2, "%.3f s", took);
    CHECK(stats().limit_left_bytes > stats().limit_bytes / 4, "%lu MiB left: not by an event", stats().limit_left_bytes / MIB);
}

static void high(size_t kept)
{
    keep_free(kept);
    set_limit("memory.high", used() / 2);
    double took = gone_within(kept, 16);
    printf("%.0f ms after memory.high was lowered\n", took * 1e3);
    /* Above it the kernel makes everybody wait, those who give back too, up to 2 s at a time; seen: 2 to 8. */
    CHECK(took < 16, "%.3f s", took);
    CHECK(stats().pressure_state == 2);
}

static void appears(size_t kept)
{
    keep_free(kept);
    CHECK(gone_within(kept, 0.5) >= 0.5, "given back without a limit");
    set_limit(limit_name(), used() + 12 * MIB);
    double took = gone_within(kept, 4);
    printf("%.0f ms after there was a limit\n", took * 1e3);
    CHECK(took < 2, "%.3f s", took);
}

static void both(size_t each)
{
    char *first = filled(each), *second = filled(each);
    free(first);
    double t = now();
    while (stats().lazy_bytes < each / 2 && now() - t < 20) usleep(10000);
    CHECK(stats().lazy_bytes > each / 2, "%lu bytes are lazy", stats().lazy_bytes);
    free(second);
    usleep(300000);
    struct ebb_stats s = stats();
    CHECK(s.lazy_bytes + s.dirty_bytes > each / 2 * 3, "%lu bytes are lazy, %lu dirty", s.lazy_bytes, s.dirty_bytes);
    set_limit(limit_name(), used() + each / 2 * 5);
    /* What is asked for is not that all goes: it is not short. */
    size_t most = each / 4 * 5 + 12 * MIB;
    for (t = now(), s = stats(); s.lazy_bytes + s.dirty_bytes > most && now() - t < 2; s = stats()) usleep(10000);
    CHECK(s.lazy_bytes + s.dirty_bytes <= most, "%lu MiB are lazy, %lu dirty", s.lazy_bytes / MIB, s.dirty_bytes / MIB);
    CHECK(s.lazy_bytes + s.dirty_bytes > 0 && s.pressure_state != 2, "short");
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    CHECK(argc > 2, "pressure_group MODE N");
    size_t bytes = atol(argv[2]) * MIB;
    if (is(mode, "hog")) { hog(bytes); return passed(); }
    if (is(mode, "reader")) { reader(argv[2]); return passed(); }
    is_v2 = !access(group_file("memory.max"), F_OK);
    if (is(mode, "beside")) other_process(bytes, argv[3]);
    else if (is(mode, "cache")) return cache(bytes, argv[3]);
    else if (is(mode, "level")) level(bytes, argv[3]);
    else if (is(mode, "lowered")) lowered(bytes);
    else if (is(mode, "high")) high(bytes);
    else if (is(mode, "appears")) appears(bytes);
    else if (is(mode, "both")) both(bytes);
    else CHECK(0, "pressure_group MODE N");
    return passed();
}
