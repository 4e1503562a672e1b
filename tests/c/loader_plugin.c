/* A library that allocates and frees memory (see loader.c). */
#include <stdlib.h>
#include <string.h>

const char *whose(void) { return "plugin"; }
const char *plugin_whose(void) { return whose(); }
void *plugin_malloc(void) { return (void *)malloc; }
void *plugin_make(size_t n) { return malloc(n); }
void *plugin_resize(void *p, size_t n) { return realloc(p, n); }
void plugin_drop(void *p) { free(p); }
char *plugin_copy(const char *text) { return strdup(text); }
