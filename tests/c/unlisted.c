/* CPUs that /sys does not list, as in containers whose /sys is made up: every thread works on them nevertheless.
 * Hides all CPUs but the first for itself (root), and begins anew. */
#include "areas.h"
#include <pthread.h>
#include <sys/mount.h>

#define POSSIBLE "/sys/devices/system/cpu/possible"
enum { THREADS = 8, ADDITIONS = 200000 };
static ebb_percpu *area, *behind[64];
static int ncpu;

static void *work(void *arg)
{
    pin((intptr_t)arg % ncpu);
    churn((intptr_t)arg, 20000, 200, 13);
    for (int i = 0; area && i < ADDITIONS; i++) area_add(area, 8, 3);
    churn((intptr_t)arg, 20000, 200, 13);
    return NULL;
}

static int hide(const char *self)
{
    char file[] = "/tmp/unlistedXXXXXX";
    int fd = mkstemp(file);
    CHECK(fd >= 0 && write(fd, "0\n", 2) == 2 && close(fd) == 0);
    int done = unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
               mount(file, POSSIBLE, NULL, MS_BIND, NULL) == 0;
    int error = errno;
    unlink(file);
    if (!done) return skipped(strerror(error));
    execl("/proc/self/exe", self, "hidden", NULL);
    return 1;
}

int main(int argc, char **argv)
{
    ncpu = sysconf(_SC_NPROCESSORS_ONLN);
    if (ncpu < 2) return skipped("one CPU");
    if (argc < 2) return hide(argv[0]);
    char text[8] = "";
    int fd = open(POSSIBLE, O_RDONLY);
    CHECK(fd >= 0 && read(fd, text, sizeof text) == 2 && text[0] == '0', "%s", text);
    if (find_areas()) {
        CHECK((area = area_alloc(64, 64)));
        CHECK(area_cpus() == 1, "%u", area_cpus());
        /* Whoever writes behind the units writes to other chunks. */
        for (int i = 0; i < 64; i++) CHECK((behind[i] = area_alloc(128 * KIB, 64)));
    }
    pthread_t t[THREADS];
    for (intptr_t i = 0; i < THREADS; i++) CHECK(pthread_create(&t[i], NULL, work, (void *)i) == 0);
    for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
    if (area) {
        uint64_t sum = area_sum(area, 8);
        CHECK(sum == 3ull * THREADS * ADDITIONS, "%lu", (unsigned long)sum);
        for (int i = 0; i < 64; i++)
            for (size_t at = 0; at < 128 * KIB; at += 8) CHECK(area_sum(behind[i], at) == 0, "area %d at %zu", i, at);
    }
    return passed();
}
