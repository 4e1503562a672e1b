//! The C API beyond `malloc`: `include/ebbtide.h`.

/// Gives all free memory of the process back; the bytes given back.
#[unsafe(no_mangle)]
pub extern "C" fn ebb_release() -> usize {
    ebbtide::release_all()
}
