//! The return addresses of this thread.

/// Takes the return addresses of this thread, the innermost first. Returns their number.
pub fn take(_frames: &mut [usize]) -> usize {
    0
}
