/* Fault: free changes errno. */
#define FREE(p) (__libc_free(p), (void)(errno = EINVAL))
#include "base.h"
