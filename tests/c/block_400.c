/* block with 400 KiB. */
#define TLS_KIB 400
#include "block.c"
