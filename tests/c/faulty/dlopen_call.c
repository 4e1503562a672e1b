/* Fault: dlopen is wrapped by a call, so the loader takes this library for the caller. */
#include <dlfcn.h>

static volatile int calls;

void *dlopen(const char *file, int flags)
{
    void *(*next)(const char *, int) = dlsym(RTLD_NEXT, "dlopen");
    void *handle = next(file, flags);
    calls = calls + 1;
    return handle;
}
