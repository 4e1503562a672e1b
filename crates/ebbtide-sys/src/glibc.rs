//! Addresses of glibc symbols that other C libraries, or older versions of glibc, do not have. An address is null if
//! the symbol does not exist.

/// Defines a function that returns the address of a weak symbol, null if there is none.
macro_rules! weak {
    ($(#[$about:meta])* $name:ident, $symbol:literal, $of:ty) => {
        $(#[$about])*
        pub fn $name() -> *const $of {
            let place: *const $of;
            // SAFETY: reads an entry of the global offset table, which the loader has filled.
            #[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
            unsafe {
                core::arch::asm!(
                    concat!(".weak ", $symbol),
                    concat!("mov {place}, qword ptr [rip + ", $symbol, "@GOTPCREL]"),
                    place = out(reg) place,
                    options(nostack, pure, readonly, preserves_flags),
                );
            }
            // SAFETY: as above.
            #[cfg(all(target_arch = "aarch64", target_env = "gnu"))]
            unsafe {
                core::arch::asm!(
                    concat!(".weak ", $symbol),
                    concat!("adrp {place}, :got:", $symbol),
                    concat!("ldr {place}, [{place}, :got_lo12:", $symbol, "]"),
                    place = out(reg) place,
                    options(nostack, pure, readonly, preserves_flags),
                );
            }
            #[cfg(not(all(any(target_arch = "x86_64", target_arch = "aarch64"), target_env = "gnu")))]
            {
                place = core::ptr::null();
            }
            place
        }
    };
}

weak!(
    /// The place where the loader keeps the initial stack pointer.
    stack_end, "__libc_stack_end", *const usize
);
weak!(
    /// Since 2.32: the byte is not 0 while the process has had only one thread.
    single_threaded, "__libc_single_threaded", u8
);
weak!(
    /// Since 2.35: the distance of `struct rseq` from the thread pointer.
    rseq_offset, "__rseq_offset", isize
);
weak!(
    /// Since 2.35: the size of `struct rseq`, 0 where nothing is registered.
    rseq_size, "__rseq_size", u32
);

weak!(
    /// Locks the list of all streams for the calling thread. The lock is recursive.
    list_lock, "_IO_list_lock", ()
);
weak!(
    /// Undoes one call of `_IO_list_lock`.
    list_unlock, "_IO_list_unlock", ()
);
weak!(
    /// Frees the lock of the list, whichever thread holds it.
    list_resetlock, "_IO_list_resetlock", ()
);
