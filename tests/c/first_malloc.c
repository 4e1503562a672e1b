/* A library that defines malloc and passes its calls on, as allocation profilers do. */
#include <dlfcn.h>
#include <stddef.h>

void *malloc(size_t size)
{
    static void *(*next)(size_t);

    if (!next)
        next = dlsym(RTLD_NEXT, "malloc");
    return next(size);
}
