//! `libebbtide.so`: the C ABI of the memory manager, and nothing else.
//!
//! This is the only crate that defines `malloc`. Corner cases are glibc's: `malloc(0)` is a distinct pointer,
//! `realloc(p, 0)` frees, overflow is `ENOMEM`, a bad alignment is `EINVAL`, `free` keeps `errno`.
//!
//! | module | contents |
//! |---|---|
//! | [`standard`] | `malloc`, `free`, `calloc`, `realloc` and the aligned and sized forms |
//! | [`info`] | `malloc_trim`, `mallinfo2`, `malloc_info`, `malloc_stats`, `mallopt` |
//! | [`own`] | `ebb_*`, see `include/ebbtide.h` |
//! | [`confine`] | `prctl`, `unshare`, `setns`, which apply to one thread or need a single one |
//! | `loader` | `dlopen`, and C++'s sized `delete`, where glibc is the C library; not in the archive for static programs |
//! | `signals` | `sigaction` and `signal`, which leave SIGSEGV to guarded allocations first; where `dlopen` is |
//! | [`percpu`] | `ebb_percpu_*`, see there |
#![no_std]
#![warn(missing_docs)]

pub mod confine;
pub mod info;
#[cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_env = "gnu",
    target_pointer_width = "64",
    not(feature = "static")
))]
pub mod loader;
pub mod own;
pub mod percpu;
#[cfg(all(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    target_env = "gnu",
    target_pointer_width = "64",
    not(feature = "static")
))]
pub mod signals;
pub mod standard;

use ebbtide_sys::rseq;

ebbtide_sys::define_vfork!();

/// Nothing may unwind across the C ABI; a panic here is a bug of ours.
#[panic_handler]
fn panic(info: &core::panic::PanicInfo) -> ! {
    let line = info.location().map_or(0, |place| place.line() as usize);
    let file = info.location().map_or("", |place| place.file());
    ebbtide::message::Message::new()
        .text("internal error at ")
        .text(file)
        .text(":")
        .number(line)
        .abort()
}

/// Runs before `main`.
#[used]
#[unsafe(link_section = ".init_array")]
static BEGIN: extern "C" fn() = {
    extern "C" fn begin() {
        #[cfg(all(
            any(target_arch = "x86_64", target_arch = "aarch64"),
            target_env = "gnu",
            target_pointer_width = "64",
            not(feature = "static")
        ))]
        {
            loader::prepare();
            signals::prepare();
        }
        if rseq::is_left_to_us() {
            rseq::note_first_thread();
            #[cfg(all(
                any(target_arch = "x86_64", target_arch = "aarch64"),
                target_env = "gnu",
                target_pointer_width = "64",
                not(feature = "static")
            ))]
            if loader::another_registers() {
                rseq::yield_to_other();
            }
        }
    }
    begin
};

/// Runs when the process ends in order: writes the last statistics for other processes.
#[used]
#[unsafe(link_section = ".fini_array")]
static FINISH: extern "C" fn() = {
    extern "C" fn finish() {
        ebbtide::end();
    }
    finish
};
