/* Settings that change while the program runs, and requests of an observer: control MODE
 *   set     ebb_set and ebb_get: values, errors, and that memory goes when the setting says so
 *   waits   frees 1 GiB and says so; then prints its resident MiB for each line of stdin, without a call of malloc or free;
 *           a line "slow" makes slow calls */
#include "stats.h"

static __typeof__(ebb_set) *set_key;
static __typeof__(ebb_get) *get_key;

static void touch_and_free(size_t mib)
{
    char *p = malloc(mib * MIB);
    CHECK(p);
    memset(p, 1, mib * MIB);
    free(p);
}

static void fails(int error, const char *key, const char *value)
{
    uint64_t before, after;
    CHECK(!get_key("retain_ms", &before));
    errno = 0;
    CHECK(set_key(key, value) == -1 && errno == error, "%s=%s", key, value);
    CHECK(!get_key("retain_ms", &after) && after == before);
}

static void set(void)
{
    uint64_t value;
    set_key = (__typeof__(set_key))dlsym(RTLD_DEFAULT, "ebb_set");
    get_key = (__typeof__(get_key))dlsym(RTLD_DEFAULT, "ebb_get");
    CHECK(set_key && get_key);
    CHECK(!get_key("retain_ms", &value) && value == 3600000);
    CHECK(!get_key("limit", &value) && value == UINT64_MAX);
    touch_and_free(200);
    usleep(300000);
    free(malloc(MIB));
    CHECK(resident() / MIB >= 200, "%zu MiB", resident() / MIB);
    CHECK(!set_key("limit", "20M") && !get_key("limit", &value) && value == 20 * MIB);
    for (int i = 0; i < 100 && resident() / MIB > 60; i++) {
        usleep(20000);
        free(malloc(MIB));
    }
    CHECK(resident() / MIB <= 60, "%zu MiB", resident() / MIB);
    CHECK(!set_key("limit", "50%") && !get_key("limit", &value) && value > 20 * MIB && value < UINT64_MAX);
    touch_and_free(200);
    CHECK(!set_key("retain_ms", "0") && !get_key("retain_ms", &value) && value == 0);
    for (int i = 0; i < 100 && resident() / MIB > 40; i++) {
        usleep(20000);
        free(malloc(2 * MIB));
    }
    CHECK(resident() / MIB <= 40, "%zu MiB", resident() / MIB);
    fails(EINVAL, "retain_ms", "-1");
    fails(EINVAL, "retain_ms", "");
    fails(EINVAL, "no_such", "1");
    fails(EINVAL, "retain_ms", "1111111111111111111111111111111111111111111111111111111111111111111111");
    fails(EINVAL, NULL, "1");
    fails(EINVAL, "limit", NULL);
    fails(EOPNOTSUPP, "harden", "on");
    fails(EOPNOTSUPP, "workers", "1");
    CHECK(get_key("zones", &value) == -1 && errno == EOPNOTSUPP);
    CHECK(get_key("limit", NULL) == -1 && errno == EINVAL);
}

static void waits(void)
{
    static char line[100];
    static char *small[1 << 16];
    for (int i = 0; i < 1 << 16; i++) {
        CHECK((small[i] = malloc(8 * KIB)));
        memset(small[i], 1, 8 * KIB);
    }
    touch_and_free(512);
    for (int i = 0; i < 1 << 16; i++) free(small[i]);
    for (;;) {
        int n = snprintf(line, sizeof line, "%zu\n", resident() / MIB);
        CHECK(write(1, line, n) == n);
        ssize_t got = read(0, line, sizeof line - 1);
        if (got <= 0) return;
        if (line[0] == 's') {
            for (int i = 0; i < 20; i++) {
                usleep(20000);
                free(malloc((i + 3) * MIB));
            }
        }
    }
}

int main(int argc, char **argv)
{
    CHECK(argc == 2);
    if (is(argv[1], "set")) set();
    else if (is(argv[1], "waits")) waits();
    else CHECK(0, "no mode %s", argv[1]);
    return passed();
}
