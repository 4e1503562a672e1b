/* Something says that memory is short, and free memory goes: pressure_events MODE
 *   watch        a free block is kept (window of a minute) until FIFO says that memory is short
 *   overwritten  the same, and the strings of the environment are not what they were
 *   stay         the same, and nothing says so
 *   gone         as watch; then nobody stays behind, nor wakes up meanwhile
 *   idle         a program with nothing to give has one thread, and none stays behind
 *   stalled N    keeps N MiB free until somebody stalls for memory
 *   bumped FILE TEXT   keeps 64 MiB free until FILE in the directory FAKE says TEXT
 *   ignored FILE TEXT  and then, too
 *   end          holds memory to give and ends: is its end late? */
#include "pressure.h"

/* Bytes in caches before the event. */
static uint64_t cached_before;

static double keep_until_told(int told)
{
    enum { COUNT = 4096 };
    static char *small[COUNT];
    char *block = filled(64 * MIB);
    for (int i = 0; i < COUNT; i++) { CHECK((small[i] = malloc(256))); small[i][0] = 1; }
    free(block);
    for (int i = 0; i < COUNT; i++) free(small[i]);
    usleep(300000);
    CHECK(resident() > 64 * MIB, "%zu resident: given back early", resident());
    cached_before = stats().cached_bytes;
    if (told) {
        int fd = open(getenv("MEMORY_PRESSURE_WATCH"), O_RDWR);
        CHECK(fd >= 0 && write(fd, "x", 1) == 1);
    }
    return gone_within(64 * MIB, 2);
}

/* As programs do that show what they are at in the list of processes. */
static char watched[512];
static void overwrite_environment(void)
{
    free(malloc(1));
    strcpy(watched, getenv("MEMORY_PRESSURE_WATCH"));
    for (char **e = environ; *e; e++) memset(*e, 'x', strlen(*e));
    setenv("MEMORY_PRESSURE_WATCH", watched, 1);
}

/* The kernel's files are never seen half written. */
static void bump(const char *name, const char *text)
{
    char path[512];
    snprintf(path, sizeof path, "%s/%s", getenv("FAKE"), name);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text), "%s", path);
    close(fd);
}

static void told(void)
{
    double took = keep_until_told(1);
    printf("%.1f ms after the event\n", took * 1e3);
    CHECK(took < SOON, "%.3f s", took);
    CHECK(stats().pressure_state == 2 && stats().pressure_events == 1, "%lu events", stats().pressure_events);
    for (double t = now(); stats().cached_bytes > cached_before / 4 && now() - t < 2;) usleep(1000);
    CHECK(cached_before > 16 * KIB && stats().cached_bytes <= cached_before / 4, "%lu of %lu bytes cached", stats().cached_bytes, cached_before);
    /* Nothing is kept now. */
    free(filled(64 * MIB));
    double rest = gone_within(64 * MIB, 2);
    CHECK(rest < 0.5, "%.3f s", rest);
}

/* This process has one thread after so many seconds. */
static void workers_go(double seconds)
{
    for (double start = now(); threads() > 1; usleep(100000))
        CHECK(now() - start < seconds, "%d threads after %.1f s", threads(), seconds);
}

static void idle(void)
{
    CHECK(threads() == 1);
    free(filled(64 * MIB));
    CHECK(threads() == 2, "%d", threads());
    workers_go(15);
}

/* The looks have ended with what there was to give, and after a while the thread. */
static void nobody_stays(void)
{
    sleep(1);
    long before = sleeps(getpid(), 0);
    sleep(2);
    long after = sleeps(getpid(), 0);
    CHECK(after - before <= 4, "%ld wake-ups with nothing to give", after - before);
    workers_go(12);
}

static void file_says(const char *name, const char *text, int wanted)
{
    keep_free(64 * MIB);
    bump(name, text);
    double took = gone_within(64 * MIB, wanted ? 5 : 1.5);
    printf("%.0f ms\n", took * 1e3);
    CHECK(wanted ? took < SOON : took >= 1.5, "%s: %.3f s", name, took);
    if (!wanted) CHECK(stats().pressure_events == 0);
}

static void stalled(size_t kept)
{
    keep_free(kept);
    double took = gone_within(kept, 10);
    printf("%.0f ms until somebody had stalled\n", took * 1e3);
    CHECK(took < 10 && stats().pressure_state == 2, "%.3f s", took);
}

int main(int argc, char **argv)
{
    const char *mode = argc > 1 ? argv[1] : "";
    if (is(mode, "watch")) {
        told();
    } else if (is(mode, "overwritten")) {
        overwrite_environment();
        told();
    } else if (is(mode, "stay")) {
        CHECK(keep_until_told(0) > 1.9);
    } else if (is(mode, "gone")) {
        CHECK(keep_until_told(1) < 1);
        nobody_stays();
    } else if (is(mode, "idle")) {
        idle();
    } else if (is(mode, "stalled")) {
        stalled(atol(argv[2]) * MIB);
    } else if (is(mode, "bumped") || is(mode, "ignored")) {
        file_says(argv[2], argv[3], is(mode, "bumped"));
    } else {
        CHECK(is(mode, "end"), "pressure_events MODE");
        free(filled(64 * MIB));
        usleep(200000);
    }
    return passed();
}
