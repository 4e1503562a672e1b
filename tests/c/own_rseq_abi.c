/* A library that exports the area of tcmalloc and of early versions of librseq, which register it at a thread's first
 * use. This one never does. */
__attribute__((visibility("default"), tls_model("initial-exec"), aligned(32))) __thread volatile char __rseq_abi[32];
