/* What the system has of a large process that ended: exit_memory MODE. Needs exit=detached, exit_threshold=32M.
 *   returned [FILE]  512 MiB are free again, in FILE (a cgroup's usage) or in the system's free memory
 *   swapped          256 MiB of swap are free again
 *   hurried FILE MIB 1 GiB waits for admission while the slots of XDG_RUNTIME_DIR are taken, and is back at once,
 *                    admitted or not, when MIB more are used in the cgroup whose usage FILE says
 *   many N [DIR]     N short programs (fewer where their helpers take long) leave nothing: no process, no descriptor, no
 *                    file, no lock in XDG_RUNTIME_DIR, and no memory or swap of the cgroup DIR */
#include "exit.h"
#include <sys/stat.h>
#include <sys/sysinfo.h>

static int child(char **a)
{
    if (is(a[7], "swap")) {
        hold_memory(atoi(a[3]));
        madvise((void *)((uintptr_t)held & -PAGE), 40 * MIB, MADV_PAGEOUT);
        a[3] = "0";
    }
    return plain_child(a);
}

/* Pages free in the system, those in the CPUs' lists too. */
static size_t free_bytes(void)
{
    char line[256];
    size_t pages = 0, n;
    FILE *f = fopen("/proc/zoneinfo", "r");
    CHECK(f);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, " pages free %zu", &n) == 1 || sscanf(line, " count: %zu", &n) == 1) pages += n;
    fclose(f);
    return pages * PAGE;
}

/* Bytes in use, as a cgroup or the system has it. */
static ssize_t in_use(const char *file) { return file ? (ssize_t)number_in(file) : -(ssize_t)free_bytes(); }

static int a_slot_is_taken(int slots)
{
    struct flock all = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    CHECK(!fcntl(slots, F_OFD_GETLK, &all));
    return all.l_type != F_UNLCK;
}

/* Idle threads have 5 s once a helper is admitted, then usual ones do what is left. */
#define ADMITTED_S 7.0

/* Seconds until less than `most` is in use, from the helper's admission on; ADMITTED_S or more: it is not by then. */
static double back_once_admitted(pid_t helper, const char *file, ssize_t most)
{
    /* Without a place for slots it counts from now on. */
    int slots = getenv("XDG_RUNTIME_DIR") ? open_slots() : -1;
    double ended = now(), admitted = slots < 0 ? ended : 0, passed_s = 0;
    while (in_use(file) >= most && passed_s < ADMITTED_S) {
        /* A short admitted may have been missed. */
        if (!admitted && (a_slot_is_taken(slots) || is_gone(helper))) admitted = now();
        CHECK(admitted || now() - ended < patience(), "it was never admitted");
        usleep(1000);
        passed_s = admitted ? now() - admitted : 0;
    }
    if (slots >= 0) close(slots);
    return passed_s;
}

/* Others come and go on a busy machine: once in several times is enough. */
static int returned(const char *file)
{
    const ssize_t size = 512 * MIB;
    double took = ADMITTED_S;
    for (int i = 0; i < 4 && took >= ADMITTED_S; i++) {
        ssize_t before = in_use(file);
        struct plan plan = {"kill", 512, 0, 0, 0, NULL};
        struct child c = start(&plan, 1, -1);
        CHECK(file == NULL || in_use(file) - before > size * 9 / 10);
        end_child(&c, "kill");
        CHECK(fits("kill", wait_for(&c)));
        took = back_once_admitted(c.helper, file, before + size / 10);
        end_of(&c);
    }
    printf("%.1f ms from admission on\n", took * 1e3);
    CHECK(took < ADMITTED_S, "the memory is not back in the time of an admitted helper");
    return passed();
}

/* Whether the machine is short of memory by itself, now or since `lost` (both in microseconds): then helpers hurry. */
static int machine_is_short(unsigned long long *lost)
{
    char text[512];
    unsigned long long total = 0, before = *lost, available = ~0ull;
    double average = 0;
    read_text(text, sizeof text, "/proc/pressure/memory");
    sscanf(text, "some avg10=%lf avg60=%*f avg300=%*f total=%llu", &average, &total);
    read_text(text, sizeof text, "/proc/meminfo");
    char *line = strstr(text, "MemAvailable:");
    if (line) sscanf(line, "MemAvailable: %llu", &available);
    *lost = total;
    return average >= 5 || total - before >= 2000 || available < 2048 * 1024;
}

/* A child of 1 GiB has been killed and waited for, the slots are taken. 0: its memory goes early, and may. */
static int waits_for_admission(const char *file, struct child *c, ssize_t before, double seconds)
{
    unsigned long long lost = 0;
    struct plan plan = {"kill", 1024, 0, 0, 0, NULL};
    *c = start(&plan, 1, -1);
    ssize_t full = in_use(file) - before;
    CHECK(full > (ssize_t)(1000 * MIB), "only %zd MiB are used", full >> 20);
    machine_is_short(&lost);
    end_child(c, "kill");
    CHECK(fits("kill", wait_for(c)));
    for (double began = now(); now() - began < seconds; usleep(20000)) {
        if (in_use(file) - before > full * 9 / 10) continue;
        CHECK(machine_is_short(&lost), "the memory does not wait for admission");
        return 0;
    }
    return 1;
}

/* Seconds until the child's memory is back, `more` being used by somebody else. */
static double until_back(const char *file, ssize_t before, ssize_t more, double most)
{
    double began = now();
    while (in_use(file) - before - more > (ssize_t)(100 * MIB)) {
        CHECK(now() - began < most, "%zd MiB are still used after %.1f s", (in_use(file) - before - more) >> 20, most);
        usleep(1000);
    }
    return now() - began;
}

static int hurried(const char *file, size_t mib)
{
    struct child c;
    ssize_t before = in_use(file);
    int slots = take_slots(), waited = waits_for_admission(file, &c, before, 1);
    close(slots);
    double calm = until_back(file, before, 0, patience());
    end_of(&c);
    slots = take_slots();
    waited &= waits_for_admission(file, &c, before, 0.3);
    if (!waited) return skipped("this machine is short of memory");
    char *more = mmap(NULL, mib * MIB + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(more != MAP_FAILED);
    memset(more, 1, mib * MIB);
    double hurry = until_back(file, before, mib * MIB, 3);
    close(slots);
    end_of(&c);
    printf("admitted: back after %.0f ms; memory is short: after %.0f ms\n", calm * 1e3, hurry * 1e3);
    return passed();
}

static size_t swap_used(void)
{
    struct sysinfo s;
    CHECK(!sysinfo(&s));
    return (s.totalswap - s.freeswap) * s.mem_unit;
}

static int swapped(void)
{
    size_t before = swap_used();
    struct child all[8];
    struct plan plan = {"kill", 48, 0, 0, 0, "swap"};
    for (int i = 0; i < 8; i++) all[i] = start(&plan, 1, -1);
    size_t grown = swap_used() - before;
    if (grown < 24 * MIB) return skipped("nothing is swapped out here");
    for (int i = 0; i < 8; i++) end_child(&all[i], "kill");
    for (int i = 0; i < 8; i++) CHECK(fits("kill", wait_for(&all[i])));
    double began = now(), last = began;
    /* Few helpers are admitted at a time: some of it must come with each. */
    for (size_t least = before + grown, used; (used = swap_used()) > before + MIB; usleep(1000)) {
        if (used + MIB <= least) { least = used; last = now(); }
        CHECK(now() - last < patience(), "%zu MiB of swap are not back", (used - before) >> 20);
    }
    printf("%zu MiB of swap back after %.1f ms\n", grown >> 20, (now() - began) * 1e3);
    return passed();
}

/* This user's, without the directory of slots that any helper of the user's makes once. */
static int count_entries(const char *dir, const char *with)
{
    int n = 0;
    char for_slots[32];
    snprintf(for_slots, sizeof for_slots, "ebbtide-%u", (unsigned)geteuid());
    DIR *d = opendir(dir);
    if (!d) return 0;
    for (struct dirent *e; (e = readdir(d));) {
        struct stat s;
        if (!strstr(e->d_name, with) || !strcmp(e->d_name, for_slots)) continue;
        n += !fstatat(dirfd(d), e->d_name, &s, AT_SYMLINK_NOFOLLOW) && s.st_uid == geteuid();
    }
    closedir(d);
    return n;
}

static int leftovers(void)
{
    return count_entries("/dev/shm", "ebbtide") + count_entries("/proc/self/fd", "");
}

/* What the processes of a cgroup have in memory and in swap, to the page; version 1 has sums over children too. */
static size_t held_in(const char *group)
{
    char line[256], name[64];
    size_t n, bytes = 0, seen = 0;
    snprintf(line, sizeof line, "%s/memory.stat", group);
    FILE *f = fopen(line, "r");
    CHECK(f, "%s", line);
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "%63s %zu", name, &n) != 2) continue;
        if (strcmp(name, "rss") && strcmp(name, "anon") && strcmp(name, "swap")) continue;
        bytes += n;
        seen++;
    }
    fclose(f);
    CHECK(seen, "%s says nothing of memory", group);
    snprintf(line, sizeof line, "%s/memory.swap.current", group);
    return access(line, R_OK) ? bytes : bytes + number_in(line);
}

/* Collects helpers until so many have ended; returns how long that took. They are admitted one after the other, for 5 s where others want the
 * CPUs: it is late when none ends any more. */
static double collect(int *ended, int wanted)
{
    double began = now(), last = began;
    for (; *ended < wanted; usleep(1000)) {
        CHECK(now() - last < patience(), "%d helpers have ended, not %d", *ended, wanted);
        for (; waitpid(-1, NULL, WNOHANG) > 0; last = now()) ++*ended;
    }
    return now() - began;
}

/* Every helper becomes this process's child, and so can be counted. Where they take long, there are fewer programs. */
static int many(int rounds, const char *group)
{
    size_t held_before = 0;
    enum { AT_ONCE = 4 };
    double waited = 0;
    CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1));
    int before = -1, programs = 0, ended = 0;
    for (int r = 0; r < rounds && (r <= AT_ONCE || waited < 30); r += AT_ONCE) {
        struct child c[AT_ONCE];
        for (int i = 0; i < AT_ONCE; i++) {
            struct plan plan = {i % 2 ? "exit" : "kill", 40, 0, 0, 0, NULL};
            c[i] = start(&plan, 1, -1);
        }
        for (int i = 0; i < AT_ONCE; i++) {
            end_child(&c[i], i % 2 ? "exit" : "kill");
            wait_for(&c[i]);
            forget(&c[i]);
        }
        programs += AT_ONCE;
        waited += collect(&ended, r ? programs - AT_ONCE : programs);
        if (r) continue;
        /* The first ones may have made what stays, once. */
        before = leftovers();
        held_before = group ? held_in(group) : 0;
    }
    collect(&ended, programs);
    printf("%d programs\n", programs);
    CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD, "more helpers than programs");
    CHECK(leftovers() == before, "%d things before, %d after", before, leftovers());
    if (group) {
        size_t held_after = held_in(group);
        printf("%zu KiB in memory and swap before, %zu after\n", held_before >> 10, held_after >> 10);
        CHECK(held_after < held_before + MIB, "%zu bytes more", held_after - held_before);
    }
    if (getenv("XDG_RUNTIME_DIR")) {
        struct stat s;
        int slots = take_slots();
        CHECK(!fstat(slots, &s) && s.st_size == 0);
        CHECK(count_entries(getenv("XDG_RUNTIME_DIR"), "ebbtide") == 1);
    }
    return passed();
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (is(mode, "child")) return child(argv);
    if (is(mode, "returned")) return returned(argc > 2 ? argv[2] : NULL);
    if (is(mode, "swapped")) return swapped();
    if (is(mode, "hurried")) return hurried(argv[2], atoi(argv[3]));
    if (is(mode, "many")) return many(atoi(argv[2]), argc > 3 ? argv[3] : NULL);
    CHECK(0, "exit_memory MODE");
}
