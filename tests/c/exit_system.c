/* What the system has of a large process that ended: exit_system MODE. Needs exit=detached, exit_threshold=32M.
 *   returned [FILE]  512 MiB are free again, in FILE (a cgroup's usage) or in the system's free memory
 *   swapped          256 MiB of swap are free again
 *   many N           N short programs leave nothing: no process, no descriptor, no file
 *   nproc UID        a plain user with RLIMIT_NPROC: no helper to be had, the end is as ever
 *   users UID UID    two users at once
 *   user UID         a plain user
 *   traced           under ptrace: stopped, let go, killed
 *   attach           gdb attaches, looks, lets go
 *   core             ends by abort; 48 blocks hold a text that the core file must have
 * The children are those of exit.c. */
#include "exit.h"
#include <grp.h>
#include <sys/ptrace.h>
#include <sys/sysinfo.h>

#define TEXTS 48
static const char text_of_block[] = "ifbq.qbuufso.gps.uif.dpsf.gjmf";

static int child(char **a)
{
    hold_memory(atoi(a[3]));
    if (!strcmp(a[7], "swap"))
        madvise((void *)((uintptr_t)held & -PAGE), 40 * MIB, MADV_PAGEOUT);
    say(SAYS);
    if (!strcmp(a[2], "kill")) for (;;) pause();
    hear(GO);
    return 7;
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

static size_t number_in(const char *file)
{
    size_t n = 0;
    FILE *f = fopen(file, "r");
    CHECK(f && fscanf(f, "%zu", &n) == 1, "%s", file);
    fclose(f);
    return n;
}

/* Bytes in use, as a cgroup or the system has it. */
static ssize_t in_use(const char *file) { return file ? (ssize_t)number_in(file) : -(ssize_t)free_bytes(); }

/* Others come and go on a busy machine: once in several times is enough. */
static int returned(const char *file)
{
    const ssize_t size = 512 * MIB;
    double best = 1e9;
    for (int i = 0; i < 4 && best > 2; i++) {
        ssize_t before = in_use(file);
        struct plan plan = {"kill", 512, 0, 0, 0, NULL};
        struct child c = start(&plan, 1, -1);
        CHECK(file == NULL || in_use(file) - before > size * 9 / 10);
        double began = now();
        end_child(&c, "kill");
        CHECK(fits("kill", wait_for(&c)));
        double took = 1e9;
        while (took > 2 && now() - began < 2) {
            if (in_use(file) - before < size / 10) took = now() - began;
            usleep(1000);
        }
        if (took < best) best = took;
        await_gone(c.helper);
        forget(&c);
    }
    printf("%.1f ms\n", best * 1e3);
    CHECK(best < 2, "the memory is not back after 2 s");
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
    if (grown < 24 * MIB) { puts("skipped: nothing is swapped out here"); return 0; }
    for (int i = 0; i < 8; i++) end_child(&all[i], "kill");
    for (int i = 0; i < 8; i++) CHECK(fits("kill", wait_for(&all[i])));
    double began = now();
    while (swap_used() > before + MIB) {
        CHECK(now() - began < 10, "%zu MiB of swap are not back", (swap_used() - before) >> 20);
        usleep(1000);
    }
    printf("%zu MiB of swap back after %.1f ms\n", grown >> 20, (now() - began) * 1e3);
    return passed();
}

static int count_entries(const char *dir, const char *with)
{
    int n = 0;
    DIR *d = opendir(dir);
    if (!d) return 0;
    for (struct dirent *e; (e = readdir(d));) n += !!strstr(e->d_name, with);
    closedir(d);
    return n;
}

static int leftovers(void)
{
    return count_entries("/dev/shm", "ebbtide") + count_entries("/tmp", "ebbtide-0")
           + count_entries("/proc/self/fd", "");
}

/* Every helper becomes this process's child, and so can be counted. */
static int many(int rounds)
{
    enum { AT_ONCE = 4 };
    CHECK(!prctl(PR_SET_CHILD_SUBREAPER, 1));
    int before = -1, programs = 0, ended = 0;
    for (int r = 0; r < rounds; r += AT_ONCE) {
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
        while (waitpid(-1, NULL, WNOHANG) > 0) ended++;
        /* The first ones may have made what stays, once. */
        if (r == 0) before = leftovers();
    }
    for (double began = now(); ended < programs; usleep(1000)) {
        CHECK(now() - began < patience(), "%d of %d helpers have ended", ended, programs);
        if (waitpid(-1, NULL, WNOHANG) > 0) ended++;
    }
    CHECK(waitpid(-1, NULL, WNOHANG) == -1 && errno == ECHILD, "more helpers than programs");
    CHECK(leftovers() == before, "%d things before, %d after", before, leftovers());
    return passed();
}

/* Runs a check as a user, in a process of its own. */
static pid_t as_user(uid_t uid, int processes, void (*check)(void))
{
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid) return pid;
    if (processes) {
        struct rlimit limit = {processes, processes};
        CHECK(!setrlimit(RLIMIT_NPROC, &limit));
    }
    CHECK(!setgroups(0, NULL) && !setgid(uid) && !setuid(uid));
    check();
    _exit(0);
}

static void done(pid_t pid)
{
    int status;
    CHECK(waitpid(pid, &status, 0) == pid && status == 0, "a user's check: %x", status);
}

static void refused(void)
{
    hold_memory(48);
    usleep(300000);
    CHECK(!helper_of(getpid()));
    churn(1, 2000, 100, 16);
}

static void served(void)
{
    for (int i = 0; i < 4; i++) {
        struct plan plan = {"kill", 64, 0, 0, 0, NULL};
        struct child c = start(&plan, 1, -1);
        end_child(&c, "kill");
        CHECK(fits("kill", wait_for(&c)));
        await_gone(c.helper);
        forget(&c);
    }
}

static int traced(void)
{
    int status;
    struct plan plan = {"exit", 48, 0, 0, 0, NULL};
    for (int how = 0; how < 3; how++) {
        struct child c = start(&plan, 1, -1);
        CHECK(!ptrace(PTRACE_SEIZE, c.pid, NULL, PTRACE_O_TRACEEXIT));
        CHECK(!ptrace(PTRACE_INTERRUPT, c.pid, NULL, NULL));
        CHECK(waitpid(c.pid, &status, __WALL) == c.pid && WIFSTOPPED(status));
        usleep(50000);
        CHECK(helper_of(c.pid) == c.helper);
        if (how == 0) {
            CHECK(!ptrace(PTRACE_DETACH, c.pid, NULL, NULL));
            end_child(&c, "exit");
        } else if (how == 1) {
            CHECK(!ptrace(PTRACE_CONT, c.pid, NULL, NULL));
            end_child(&c, "exit");
            /* It stops once more on its way out. The helper must wait for that. */
            CHECK(waitpid(c.pid, &status, __WALL) == c.pid && status >> 8 == (SIGTRAP | PTRACE_EVENT_EXIT << 8), "%x", status);
            usleep(100000);
            size_t pages = 0;
            char text[128];
            read_text(text, sizeof text, "/proc/%d/statm", c.pid, 0);
            CHECK(sscanf(text, "%*u %zu", &pages) == 1 && pages * PAGE > 40 * MIB, "%zu pages", pages);
            CHECK(helper_of(c.pid) == c.helper);
            CHECK(!ptrace(PTRACE_CONT, c.pid, NULL, NULL));
        } else {
            CHECK(!kill(c.pid, SIGKILL));
            do CHECK(waitpid(c.pid, &status, __WALL) == c.pid);
            while (WIFSTOPPED(status) && !ptrace(PTRACE_CONT, c.pid, NULL, NULL));
            CHECK(fits("kill", status), "%x", status);
            await_gone(c.helper);
            forget(&c);
            continue;
        }
        status = wait_for(&c);
        CHECK(fits("exit", status), "%x", status);
        await_gone(c.helper);
        forget(&c);
    }
    return passed();
}

static int attach(void)
{
    char command[256], line[512];
    int seen = 0;
    struct plan plan = {"exit", 48, 0, 0, 0, NULL};
    struct child c = start(&plan, 1, -1);
    unsetenv("LD_PRELOAD");
    snprintf(command, sizeof command, "gdb -nx -batch -p %d -ex 'print 6 * 7' -ex 'info threads' 2>&1", (int)c.pid);
    FILE *f = popen(command, "r");
    CHECK(f);
    while (fgets(line, sizeof line, f)) seen |= !!strstr(line, "= 42");
    pclose(f);
    CHECK(seen, "gdb has not looked");
    CHECK(helper_of(c.pid) == c.helper);
    end_child(&c, "exit");
    int status = wait_for(&c);
    CHECK(fits("exit", status), "%x", status);
    await_gone(c.helper);
    return passed();
}

static int core(void)
{
    char text[sizeof text_of_block];
    for (size_t i = 0; i < sizeof text; i++) text[i] = text_of_block[i] ? text_of_block[i] - 1 : 0;
    for (int i = 0; i < TEXTS; i++) {
        char *p = malloc(MIB);
        CHECK(p);
        fill(p, MIB, i);
        memcpy(p + MIB / 2, text, sizeof text);
    }
    for (volatile char *p = text; p < text + sizeof text; p++) *p = 0;
    CHECK(getenv("NO_HELPER") || await_helper(getpid()));
    abort();
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    uid_t uid = argc > 2 ? atoi(argv[2]) : 0;
    if (!strcmp(mode, "child")) return child(argv);
    if (!strcmp(mode, "returned")) return returned(argc > 2 ? argv[2] : NULL);
    if (!strcmp(mode, "swapped")) return swapped();
    if (!strcmp(mode, "many")) return many(uid);
    if (!strcmp(mode, "nproc")) { done(as_user(uid, 1, refused)); done(as_user(uid, 50, served)); return passed(); }
    if (!strcmp(mode, "user")) { done(as_user(uid, 0, served)); return passed(); }
    if (!strcmp(mode, "users")) {
        pid_t one = as_user(uid, 0, served), two = as_user(atoi(argv[3]), 0, served);
        done(one);
        done(two);
        return passed();
    }
    if (!strcmp(mode, "traced")) return traced();
    if (!strcmp(mode, "attach")) return attach();
    if (!strcmp(mode, "core")) return core();
    CHECK(0, "exit_system MODE");
}
