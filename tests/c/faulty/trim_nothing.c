/* Fault: free keeps everything up to 1 MiB, and malloc_trim claims that it released memory. */
#define FREE(p) ((p) && malloc_usable_size(p) > (1 << 20) ? __libc_free(p) : (void)0)
#include "base.h"

int malloc_trim(size_t keep) { (void)keep; return 1; }
