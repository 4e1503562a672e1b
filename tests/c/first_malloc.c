/* A library that defines malloc and passes it on, as profilers of allocations do. */
#include <dlfcn.h>
#include <stddef.h>

void *malloc(size_t size)
{
    static void *(*next)(size_t);

    if (!next)
        next = dlsym(RTLD_NEXT, "malloc");
    return next(size);
}
