//! Addresses of symbols that not every C library, or not every version of glibc, has. An address is null if the symbol
//! does not exist.

use core::ffi::{c_int, c_void};
use core::mem::transmute;

// The linker reads each archive once. This asks for the C library again behind this crate, which Rust puts behind it.
#[cfg(all(target_env = "musl", target_feature = "crt-static"))]
#[link(name = "c", kind = "static", modifiers = "-bundle")]
unsafe extern "C" {}

/// Defines a function that returns the address of a weak symbol, null if there is none.
macro_rules! weak {
    ($(#[$about:meta])* $name:ident, $symbol:literal, $of:ty) => {
        $(#[$about])*
        pub fn $name() -> *const $of {
            let place: *const $of;
            // SAFETY: reads an entry of the global offset table, which the loader has filled.
            #[cfg(all(target_arch = "x86_64", any(target_env = "gnu", target_env = "musl")))]
            unsafe {
                core::arch::asm!(
                    concat!(".weak ", $symbol),
                    concat!("mov {place}, qword ptr [rip + ", $symbol, "@GOTPCREL]"),
                    place = out(reg) place,
                    options(nostack, pure, readonly, preserves_flags),
                );
            }
            // SAFETY: as above.
            #[cfg(all(target_arch = "aarch64", any(target_env = "gnu", target_env = "musl")))]
            unsafe {
                core::arch::asm!(
                    concat!(".weak ", $symbol),
                    concat!("adrp {place}, :got:", $symbol),
                    concat!("ldr {place}, [{place}, :got_lo12:", $symbol, "]"),
                    place = out(reg) place,
                    options(nostack, pure, readonly, preserves_flags),
                );
            }
            #[cfg(not(all(
                any(target_arch = "x86_64", target_arch = "aarch64"),
                any(target_env = "gnu", target_env = "musl")
            )))]
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
    /// The environment. glibc has set it only when its own start is done.
    environment, "__environ", *const *const libc::c_char
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
    /// Since 2.35: finds the object that has an address, without a lock.
    find_object, "_dl_find_object", ()
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

weak!(
    /// glibc's `pthread_atfork` calls it; `pthread_atfork` itself is not in every libc.so.6, as programs link it in.
    register_atfork, "__register_atfork", ()
);
/// Defines a function that returns the address of another one. In the shared library it may be null. A static link
/// takes only what is asked for, so the archive (feature `static`) and static Rust programs need the function.
macro_rules! function {
    ($(#[$about:meta])* $name:ident, $symbol:literal) => {
        #[cfg(not(any(feature = "static", target_feature = "crt-static")))]
        weak!($(#[$about])* $name, $symbol, ());
        #[cfg(any(feature = "static", target_feature = "crt-static"))]
        $(#[$about])*
        pub fn $name() -> *const () {
            unsafe extern "C" {
                #[link_name = $symbol]
                fn function();
            }
            function as *const ()
        }
    };
}

function!(pthread_atfork, "pthread_atfork");
function!(
    /// glibc before 2.34 has it in libpthread only.
    pthread_getcpuclockid, "pthread_getcpuclockid"
);
function!(pthread_key_create, "pthread_key_create");
function!(pthread_setspecific, "pthread_setspecific");
function!(pthread_setcancelstate, "pthread_setcancelstate");

/// `PTHREAD_CANCEL_DISABLE`, in glibc and in musl.
pub const CANCEL_DISABLE: c_int = 1;

type ThreadClock = unsafe extern "C" fn(libc::pthread_t, *mut libc::clockid_t) -> c_int;
type CreateKey = unsafe extern "C" fn(*mut u32, extern "C" fn(*mut c_void)) -> c_int;
type SetSpecific = unsafe extern "C" fn(u32, *const c_void) -> c_int;
type SetCancelState = unsafe extern "C" fn(c_int, *mut c_int) -> c_int;

/// `pthread_getcpuclockid`, if there is one: the clock of a thread, made from the id that the C library keeps for it.
pub fn thread_clock() -> Option<ThreadClock> {
    // SAFETY: null, or a function of this type.
    unsafe { transmute::<*const (), Option<ThreadClock>>(pthread_getcpuclockid()) }
}

type Handler = extern "C" fn();
type RegisterAtfork = unsafe extern "C" fn(Handler, Handler, Handler, *const c_void) -> c_int;
type PthreadAtfork = unsafe extern "C" fn(Handler, Handler, Handler) -> c_int;

/// Installs handlers for `fork`. They belong to no library that can be unloaded. `false`: the C library has no such
/// function, or refuses.
pub fn install_fork_handlers(prepare: Handler, parent: Handler, child: Handler) -> bool {
    // SAFETY: each is null, or a function of this type; the handlers live as long as the process.
    unsafe {
        let register = transmute::<*const (), Option<RegisterAtfork>>(register_atfork());
        if let Some(register) = register {
            return register(prepare, parent, child, core::ptr::null()) == 0;
        }
        let register = transmute::<*const (), Option<PthreadAtfork>>(pthread_atfork());
        register.is_some_and(|register| register(prepare, parent, child) == 0)
    }
}

/// Functions for the end of a thread. None of them allocates in musl.
pub struct Ends {
    /// `pthread_key_create`
    pub create_key: CreateKey,
    /// `pthread_setspecific`
    pub set_specific: SetSpecific,
    /// `pthread_setcancelstate`; musl accepts null for the old state.
    pub set_cancel_state: SetCancelState,
}

/// These functions, if all exist.
pub fn ends() -> Option<Ends> {
    let (key, specific) = (pthread_key_create(), pthread_setspecific());
    // SAFETY: each is null, or a function of this type.
    unsafe {
        Some(Ends {
            create_key: transmute::<*const (), Option<CreateKey>>(key)?,
            set_specific: transmute::<*const (), Option<SetSpecific>>(specific)?,
            set_cancel_state: transmute::<*const (), Option<SetCancelState>>(
                pthread_setcancelstate(),
            )?,
        })
    }
}

/// Whether the C library is glibc, dynamic or static.
pub fn is_glibc() -> bool {
    !stack_end().is_null()
}
