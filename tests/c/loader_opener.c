/* A library that opens others (see loader.c). */
#include <dlfcn.h>

int opened;

void *open_it(const char *name, int flags)
{
    void *handle = dlopen(name, flags);
    opened += handle != 0; /* no tail call: the caller is this library */
    return handle;
}
