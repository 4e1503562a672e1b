/* A library that allocates when loaded, when called and when unloaded (see life.c). */
#include "check.h"

static char *kept;
static _Thread_local char tls[3000];

__attribute__((constructor)) static void loaded(void)
{
    kept = malloc(4321);
    fill(kept, 4321, 8);
    memset(tls, 1, sizeof tls);
}

__attribute__((destructor)) static void unloaded(void)
{
    VERIFY(kept, 4321, 8);
    free(kept);
}

void *plugin_make(int r)
{
    char *p = malloc(100 + r);
    fill(p, 100 + r, r);
    return p;
}
