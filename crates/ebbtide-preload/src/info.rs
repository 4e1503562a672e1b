//! Figures and settings of the allocator, in glibc's forms.

use core::ffi::{c_char, c_int, c_void};
use core::fmt::Write;
use ebbtide::stats::{FIGURES, Kind, figures};

/// malloc_trim(3): releases all free memory, including all caches; `pad` is ignored. Returns 1 if any was released.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_trim(_pad: usize) -> c_int {
    c_int::from(ebbtide::release_all() > 0)
}

/// `struct mallinfo2` of glibc 2.33. Each field's doc says what it means here.
#[repr(C)]
#[derive(Default)]
#[allow(missing_docs)]
pub struct mallinfo2 {
    /// Frames in use and free memory that is still resident, without large allocations.
    pub arena: usize,
    /// 0: there is no such count.
    pub ordblks: usize,
    pub smblks: usize,
    /// 0: large allocations are not counted, only their bytes.
    pub hblks: usize,
    /// Bytes of large allocations.
    pub hblkhd: usize,
    pub usmblks: usize,
    /// Bytes in the CPUs' caches.
    pub fsmblks: usize,
    /// Bytes with the program, without large allocations.
    pub uordblks: usize,
    /// Bytes kept for reuse.
    pub fordblks: usize,
    /// Bytes that `malloc_trim` would release at least.
    pub keepcost: usize,
}

/// mallinfo2(3).
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo2() -> mallinfo2 {
    let stats = figures();
    let free = stats.cached_bytes + stats.in_spans_bytes + stats.dirty_bytes + stats.lazy_bytes;
    let small = stats.live_bytes.saturating_sub(stats.large_bytes);
    mallinfo2 {
        arena: (small + free) as usize,
        hblkhd: stats.large_bytes as usize,
        fsmblks: stats.cached_bytes as usize,
        uordblks: small as usize,
        fordblks: free as usize,
        keepcost: stats.dirty_bytes as usize,
        ..mallinfo2::default()
    }
}

/// `struct mallinfo`: as [`mallinfo2`] in `int`s, which stop at 2 GiB - 1 here instead of wrapping.
#[repr(C)]
#[allow(missing_docs)]
pub struct mallinfo {
    pub arena: c_int,
    pub ordblks: c_int,
    pub smblks: c_int,
    pub hblks: c_int,
    pub hblkhd: c_int,
    pub usmblks: c_int,
    pub fsmblks: c_int,
    pub uordblks: c_int,
    pub fordblks: c_int,
    pub keepcost: c_int,
}

/// mallinfo(3).
#[unsafe(no_mangle)]
pub extern "C" fn mallinfo() -> mallinfo {
    let wide = mallinfo2();
    let int = |bytes: usize| c_int::try_from(bytes).unwrap_or(c_int::MAX);
    mallinfo {
        arena: int(wide.arena),
        ordblks: 0,
        smblks: 0,
        hblks: 0,
        hblkhd: int(wide.hblkhd),
        usmblks: 0,
        fsmblks: int(wide.fsmblks),
        uordblks: int(wide.uordblks),
        fordblks: int(wide.fordblks),
        keepcost: int(wide.keepcost),
    }
}

/// mallopt(3): glibc's parameters are accepted and have no effect (1), others are unknown (0).
#[unsafe(no_mangle)]
pub extern "C" fn mallopt(parameter: c_int, _value: c_int) -> c_int {
    // M_MXFAST, M_TRIM_THRESHOLD … M_CHECK_ACTION, M_PERTURB, M_ARENA_TEST, M_ARENA_MAX.
    c_int::from(matches!(parameter, 1 | -8..=-1))
}

/// Text for a person or a parser, built on the stack.
struct Text {
    bytes: [u8; 4096],
    len: usize,
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> core::fmt::Result {
        let room = &mut self.bytes[self.len..];
        let count = text.len().min(room.len());
        room[..count].copy_from_slice(&text.as_bytes()[..count]);
        self.len += count;
        Ok(())
    }
}

impl Text {
    fn new() -> Self {
        Self {
            bytes: [0; 4096],
            len: 0,
        }
    }

    fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// The statistics by name, without those that only readers of the page need.
fn shown() -> impl Iterator<Item = (&'static str, u64)> {
    let values = figures().values();
    FIGURES
        .iter()
        .zip(values)
        .filter(|(figure, _)| figure.kind != Kind::Fact && !figure.name.starts_with("rss"))
        .map(|(figure, value)| (figure.name, value))
}

/// malloc_stats(3): the figures on stderr, a line each.
#[unsafe(no_mangle)]
pub extern "C" fn malloc_stats() {
    let mut text = Text::new();
    for (name, value) in shown() {
        let _ = writeln!(text, "{name:<17} {value:>16}");
    }
    for (name, lock) in ebbtide::stats::locks().filter(|(_, lock)| lock.taken > 0) {
        let (waits, holds) = (&lock.waits, &lock.holds);
        let _ = writeln!(
            text,
            "lock {name:<9} {:>12} taken {:>9} contended, waits {:>6} ns mean {:>9} ns 99 % {:>9} ns longest, holds {:>6} ns mean {:>6} ns 99 % {:>9} ns longest",
            lock.taken,
            lock.contended,
            waits.sum_ns / lock.contended.max(1),
            waits.quantile_ns(0.99),
            waits.longest_ns,
            holds.sum_ns / lock.taken,
            holds.quantile_ns(0.99),
            holds.longest_ns,
        );
    }
    ebbtide_sys::file::write_stderr(text.as_bytes());
}

/// malloc_info(3): the figures as XML. `options` must be 0.
///
/// # Safety
/// `stream` is an open stream.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn malloc_info(options: c_int, stream: *mut libc::FILE) -> c_int {
    if options != 0 {
        return libc::EINVAL;
    }
    let mut text = Text::new();
    let _ = writeln!(
        text,
        "<malloc version=\"1\">\n<allocator name=\"ebbtide\"/>"
    );
    for (name, value) in shown() {
        if let Some(name) = name.strip_suffix("_bytes") {
            let _ = writeln!(text, "<size type=\"{name}\" bytes=\"{value}\"/>");
        }
    }
    let _ = writeln!(text, "</malloc>");
    let bytes = text.as_bytes();
    // SAFETY: by contract; `bytes` is readable.
    let written = unsafe { libc::fwrite(bytes.as_ptr().cast::<c_void>(), 1, bytes.len(), stream) };
    if written == bytes.len() { 0 } else { -1 }
}

/// The version, for programs that look it up by name.
#[unsafe(no_mangle)]
pub extern "C" fn ebb_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}
