/* block with 16 KiB. */
#define TLS_KIB 16
#include "block.c"
