/* Counts the loaded copies of Ebbtide, and finds which library's malloc the program uses: copies N FILE [NAME]
 *   N      copies that must be mapped
 *   FILE   the library that malloc must come from
 *   NAME   a library to open: it must be a copy that is loaded already */
#include "check.h"
#include <dlfcn.h>
#include <limits.h>

static int mapped(void)
{
    char line[PATH_MAX + 200];
    int copies = 0;
    FILE *f = fopen("/proc/self/maps", "r");
    CHECK(f);
    while (fgets(line, sizeof line, f)) copies += strstr(line, " r-xp ") && strstr(line, "libebbtide");
    fclose(f);
    return copies;
}

int main(int argc, char **argv)
{
    char want[PATH_MAX], have[PATH_MAX];
    Dl_info info;
    CHECK(argc > 2, "copies N FILE");
    CHECK(mapped() == atoi(argv[1]), "%d copies", mapped());
    CHECK(realpath(argv[2], want));
    static const char *const names[] = {"malloc", "free", "realloc", "ebb_release"};
    for (int i = 0; i < 4; i++) {
        void *address = dlsym(RTLD_DEFAULT, names[i]);
        CHECK(address && dladdr(address, &info) && realpath(info.dli_fname, have));
        CHECK(!strcmp(want, have), "%s is from %s", names[i], have);
    }
    CHECK(dladdr((void *)malloc, &info) && info.dli_saddr == dlsym(RTLD_DEFAULT, "malloc"));
    if (argc > 3) {
        void *handle = dlopen(argv[3], RTLD_NOW);
        CHECK(handle, "%s", dlerror());
        CHECK(dlsym(handle, "malloc") == (void *)malloc);
        CHECK(mapped() == atoi(argv[1]), "%d copies", mapped());
    }
    churn(1, 5000, 200, 18);
    return passed();
}
