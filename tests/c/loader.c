/* Libraries opened while the program runs: loader CASE
 *   mixed PLUGIN       opened with RTLD_DEEPBIND: memory goes from the program to the plugin and back
 *   whose PLUGIN WHO   opened so: the function that both define is that of WHO, `program` or `plugin`
 *   early              as mixed, opened by a constructor; the plugin is in LOADER_EARLY
 *   threads PLUGIN     as mixed, by 16 threads at once, which are the first to open anything
 *   forked          opened by forked children, while other threads open libraries or look at those that are loaded
 *   origin OPENER      a library opens another one by its own RUNPATH and by its own $ORIGIN
 *   flags PLUGIN LAZY  prints the loader's answers, to be compared; LAZY lacks a function
 *   namespace PLUGIN   dlmopen: which malloc a plugin has there
 *   across PLUGIN      frees memory of another namespace, and ends by that */
#include "check.h"
#include <dlfcn.h>
#include <link.h>
#include <pthread.h>

static const char *const sample = "a string that is longer than most";
static void *early;

struct plugin {
    void *handle, *(*make)(size_t), *(*resize)(void *, size_t), (*drop)(void *);
    char *(*copy)(const char *);
    const char *(*whose)(void);
    void *(*malloc)(void);
};

/* The plugin defines it too. */
const char *whose(void) { return "program"; }

static struct plugin look_up(void *handle)
{
    CHECK(handle, "%s", dlerror());
    struct plugin p = {
        .handle = handle,
        .make = dlsym(handle, "plugin_make"),
        .resize = dlsym(handle, "plugin_resize"),
        .drop = dlsym(handle, "plugin_drop"),
        .copy = dlsym(handle, "plugin_copy"),
        .whose = dlsym(handle, "plugin_whose"),
        .malloc = dlsym(handle, "plugin_malloc"),
    };
    CHECK(p.make && p.resize && p.drop && p.copy && p.whose && p.malloc);
    return p;
}

static void mix_memory(struct plugin p)
{
    static const size_t sizes[] = {1, 24, 100, 5000, 300 * KIB, 20 * MIB};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        size_t n = sizes[i];
        char *ours = malloc(n), *theirs = p.make(n);
        CHECK(ours && theirs);
        fill(ours, n, i);
        fill(theirs, n, i + 1);
        ours = p.resize(ours, n + n / 2 + 1);
        theirs = realloc(theirs, n + n / 2 + 1);
        CHECK(ours && theirs);
        VERIFY(ours, n, i);
        VERIFY(theirs, n, i + 1);
        p.drop(ours);
        free(theirs);
    }
    for (int i = 0; i < 1000; i++) {
        char *ours = strdup(sample), *theirs = p.copy(sample);
        CHECK(!strcmp(ours, sample) && !strcmp(theirs, sample));
        p.drop(ours);
        free(theirs);
    }
}

__attribute__((constructor(101))) static void before_main(void)
{
    const char *plugin = getenv("LOADER_EARLY");
    if (plugin) early = dlopen(plugin, RTLD_NOW | RTLD_DEEPBIND);
}

static pthread_barrier_t barrier;

static void *open_at_once(void *path)
{
    pthread_barrier_wait(&barrier);
    struct plugin p = look_up(dlopen(path, RTLD_NOW | RTLD_DEEPBIND));
    mix_memory(p);
    CHECK(!dlclose(p.handle));
    return NULL;
}

static void open_by_library(const char *opener, int flags)
{
    void *library = dlopen(opener, RTLD_NOW), *inner;
    CHECK(library, "%s", dlerror());
    void *(*open_it)(const char *, int) = dlsym(library, "open_it");
    CHECK(open_it);
    static const char *const names[] = {"libinner.so", "$ORIGIN/sub/libinner.so"};
    for (int i = 0; i < 2; i++) {
        CHECK(!dlopen(names[i], flags), "the program itself finds %s", names[i]);
        inner = open_it(names[i], flags);
        CHECK(inner, "%s", dlerror());
        CHECK(dlsym(inner, "plugin_make"));
        CHECK(!dlclose(inner));
    }
    CHECK(!dlclose(library));
}

static void answer(const char *what, void *handle)
{
    const char *error = dlerror();
    printf("%s: %s, %s\n", what, handle ? "open" : "null", error ? error : "no error");
}

static void ask(const char *plugin, const char *lazy, const char *self)
{
    void *h;
    answer("null", h = dlopen(NULL, RTLD_NOW));
    printf("program's symbol: %d\n", dlsym(h, "whose") == (void *)whose);
    answer("noload", dlopen(plugin, RTLD_NOW | RTLD_NOLOAD));
    answer("no mode", dlopen(plugin, 0));
    answer("bad mode", dlopen(plugin, 0x40000000));
    answer("missing", dlopen("libno_such_library.so", RTLD_NOW));
    answer("missing path", dlopen("/no/such/library.so", RTLD_LAZY | RTLD_DEEPBIND));
    answer("no library", dlopen("/dev/null", RTLD_NOW));
    answer("a program", dlopen(self, RTLD_NOW));
    answer("lazy now", dlopen(lazy, RTLD_NOW));
    answer("lazy", dlopen(lazy, RTLD_LAZY));
    answer("local", h = dlopen(plugin, RTLD_NOW));
    printf("global: %d\n", dlsym(RTLD_DEFAULT, "plugin_make") != NULL);
    answer("to global", dlopen(plugin, RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL));
    printf("global: %d\n", dlsym(RTLD_DEFAULT, "plugin_make") != NULL);
    printf("closed: %d %d\n", dlclose(h), dlclose(h));
    answer("gone", dlopen(plugin, RTLD_NOW | RTLD_NOLOAD));
    answer("nodelete", h = dlopen(plugin, RTLD_NOW | RTLD_NODELETE));
    printf("closed: %d\n", dlclose(h));
    answer("not gone", dlopen(plugin, RTLD_NOW | RTLD_NOLOAD));
    printf("no symbol: %d\n", dlsym(h, "no_such_symbol") == NULL);
    answer("an error before", dlopen(plugin, RTLD_NOW | RTLD_NOLOAD));
}

static void other_malloc(const char *plugin, Lmid_t namespace, int flags, int is_same)
{
    struct plugin p = look_up(dlmopen(namespace, plugin, RTLD_NOW | flags));
    CHECK((p.malloc() == (void *)malloc) == is_same);
    if (is_same) mix_memory(p);
    char *theirs = p.make(1000);
    fill(theirs, 1000, 7);
    VERIFY(theirs, 1000, 7);
    p.drop(p.resize(theirs, 100000));
    CHECK(!dlclose(p.handle));
}

static int look_at(struct dl_phdr_info *info, size_t size, void *unused)
{
    for (volatile int i = 0; i < 50; i++) {}
    return info && size && unused;
}

static void *look_for_ever(void *unused)
{
    while (!unused) dl_iterate_phdr(look_at, unused);
    return unused;
}

static void *open_for_ever(void *unused)
{
    while (!unused) CHECK(dlopen(NULL, RTLD_NOW));
    return unused;
}

/* What is loaded already: libc itself may wait for ever where a child loads more. */
static void open_in_children(void)
{
    pthread_t t[2];
    CHECK(!pthread_create(&t[0], NULL, look_for_ever, NULL) && !pthread_create(&t[1], NULL, open_for_ever, NULL));
    for (int i = 0; i < 200; i++) {
        pid_t child = fork();
        CHECK(child >= 0);
        if (!child) {
            alarm(10);
            _exit(!dlopen(NULL, RTLD_NOW));
        }
        must_end_well(child);
    }
}

int main(int argc, char **argv)
{
    const char *c = argc > 1 ? argv[1] : "", *path = argc > 2 ? argv[2] : "";
    if (!strcmp(c, "mixed")) {
        mix_memory(look_up(dlopen(path, RTLD_LAZY | RTLD_GLOBAL | RTLD_DEEPBIND)));
    } else if (!strcmp(c, "whose") && argc > 3) {
        const char *who = look_up(dlopen(path, RTLD_NOW | RTLD_DEEPBIND)).whose();
        CHECK(!strcmp(who, argv[3]), "%s", who);
        CHECK(!strcmp(look_up(dlopen(path, RTLD_NOW | RTLD_NOLOAD)).whose(), who));
    } else if (!strcmp(c, "early")) {
        mix_memory(look_up(early));
    } else if (!strcmp(c, "threads")) {
        enum { THREADS = 16 };
        pthread_t t[THREADS];
        pthread_barrier_init(&barrier, NULL, THREADS);
        for (int i = 0; i < THREADS; i++) CHECK(!pthread_create(&t[i], NULL, open_at_once, (void *)path));
        for (int i = 0; i < THREADS; i++) pthread_join(t[i], NULL);
    } else if (!strcmp(c, "forked")) {
        open_in_children();
    } else if (!strcmp(c, "origin")) {
        open_by_library(path, RTLD_NOW);
        open_by_library(path, RTLD_LAZY | RTLD_DEEPBIND);
    } else if (!strcmp(c, "flags") && argc > 3) {
        ask(path, argv[3], argv[0]);
    } else if (!strcmp(c, "namespace")) {
        other_malloc(path, LM_ID_BASE, 0, 1);
        other_malloc(path, LM_ID_BASE, RTLD_DEEPBIND, 0);
        other_malloc(path, LM_ID_NEWLM, 0, 0);
        other_malloc(path, LM_ID_NEWLM, RTLD_DEEPBIND, 0);
    } else if (!strcmp(c, "across")) {
        free(look_up(dlmopen(LM_ID_NEWLM, path, RTLD_NOW)).make(1000));
    } else CHECK(0, "loader CASE");
    return passed();
}
