//! Process-level tests of libebbtide.so (see `tests/tests`).
