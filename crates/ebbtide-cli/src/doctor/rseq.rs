//! Checks restartable sequences: which library registered them for this thread, with which length and where, and
//! whether the kernel checks the fields that only the kernel may write.
//!
//! A second registration with the same address, length and signature fails with `EBUSY`; with other values it fails
//! with `EINVAL`. So the kernel's answer shows what is registered.

use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::Command;
use std::ptr;
use std::thread;
use std::time::Duration;

use ebbtide_interface::known;
use rustix::io::Errno;
use rustix::process::{Resource, Rlimit, setrlimit};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

use super::Check;

const AT_RSEQ_FEATURE_SIZE: libc::c_ulong = 27;
const AT_RSEQ_ALIGN: libc::c_ulong = 28;

/// Length of the first version of `struct rseq`, the shortest that the kernel accepts.
const FIRST_BYTES: u32 = 32;
const UNREGISTER: libc::c_int = 1;
/// Offset of the node in `struct rseq`, one of the fields that only the kernel writes.
const NODE_ID_AT: usize = 20;

/// The signature that the C library registers with.
#[cfg(target_arch = "x86_64")]
const SIGNATURE: u32 = 0x5305_3053;
#[cfg(target_arch = "aarch64")]
const SIGNATURE: u32 = 0xd428_bc00;

/// The registration of this thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Owner {
    /// Registered by the C library.
    Libc {
        /// The registered length.
        bytes: u32,
        /// Distance of the area from the thread pointer.
        offset: isize,
    },
    /// Registered by another library.
    Other,
    /// The C library makes no registration, for this reason, so Ebbtide registers the program's threads.
    Ebbtide(String),
    /// Not registered, with the reason.
    Nobody(String),
}

/// The C library's values, if it has them (glibc 2.35).
#[derive(Clone, Copy)]
struct Libc {
    feature_bytes: u32,
    offset: isize,
}

impl Libc {
    fn get() -> Option<Self> {
        // SAFETY: dlsym with NUL-terminated names; the symbols, if there, are a const unsigned int and a const ptrdiff_t.
        unsafe {
            let size = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_size".as_ptr());
            let offset = libc::dlsym(libc::RTLD_DEFAULT, c"__rseq_offset".as_ptr());
            if size.is_null() || offset.is_null() {
                return None;
            }
            Some(Libc {
                feature_bytes: *size.cast::<u32>(),
                offset: *offset.cast::<isize>(),
            })
        }
    }

    /// The area of this thread, if its thread pointer is known.
    fn area(self) -> Option<*mut u8> {
        // On x86-64 glibc's pthread_t is the thread pointer.
        #[cfg(target_arch = "x86_64")]
        // SAFETY: a plain call. Nothing reads from the computed address before the kernel has confirmed it.
        return Some((unsafe { libc::pthread_self() } as *mut u8).wrapping_offset(self.offset));
        #[cfg(not(target_arch = "x86_64"))]
        return None;
    }
}

/// Registers the area, or with the flag removes the registration.
fn call(area: *mut u8, bytes: u32, flags: libc::c_int) -> Result<(), Errno> {
    // SAFETY: `area` is memory of this process that stays, or the kernel refuses it.
    match unsafe { libc::syscall(libc::SYS_rseq, area, bytes, flags, SIGNATURE) } {
        0 => Ok(()),
        _ => Err(Errno::from_io_error(&io::Error::last_os_error()).unwrap_or(Errno::IO)),
    }
}

/// A value of the auxiliary vector; 0 if the kernel gives none.
pub fn auxv(kind: libc::c_ulong) -> u64 {
    // SAFETY: a plain call; an unknown type gives 0.
    unsafe { libc::getauxval(kind) }
}

/// The library that registered, with the length.
pub fn owner() -> Owner {
    let libc = Libc::get();
    match libc {
        Some(libc) if libc.feature_bytes > 0 => registered_by(libc),
        _ => without(libc.is_some()),
    }
}

/// The C library reports a registration. The registered length is the one for which the kernel answers `EBUSY`.
fn registered_by(libc: Libc) -> Owner {
    let offset = libc.offset;
    let first = libc.feature_bytes.max(FIRST_BYTES);
    let said = Owner::Libc {
        bytes: first,
        offset,
    };
    let Some(area) = libc.area() else { return said };
    for bytes in [first, FIRST_BYTES, auxv(AT_RSEQ_FEATURE_SIZE) as u32] {
        match call(area, bytes, 0) {
            Err(Errno::BUSY) => return Owner::Libc { bytes, offset },
            // The registration has another length or another place.
            Err(Errno::INVAL) => {}
            // The kernel gives no answer, so the C library's report counts.
            Err(_) => return said,
            Ok(()) => {
                // There was no registration after all. The area belongs to the C library, so this registration is
                // removed again.
                let _ = call(area, bytes, UNREGISTER);
                let why = "the C library reports a registration, the kernel has none";
                return Owner::Nobody(why.into());
            }
        }
    }
    Owner::Other
}

/// No registration by the C library is known. Registers an area of this program for a moment, if the kernel accepts
/// it.
fn without(is_known: bool) -> Owner {
    #[repr(align(64))]
    struct Area([u8; 64]);
    // Never freed: if the kernel kept it, it would write there.
    let area = Box::leak(Box::new(Area([0; 64])));
    let area = ptr::from_mut(&mut area.0).cast::<u8>();
    let why = match call(area, FIRST_BYTES, 0) {
        Ok(()) => {
            let _ = call(area, FIRST_BYTES, UNREGISTER);
            let tunables = std::env::var("GLIBC_TUNABLES").unwrap_or_default();
            let why = if !is_known {
                "glibc registers from 2.35 on"
            } else if tunables.contains("glibc.pthread.rseq=0") {
                "GLIBC_TUNABLES has glibc.pthread.rseq=0"
            } else {
                "glibc has not registered, though it could"
            };
            return Owner::Ebbtide(why.into());
        }
        Err(Errno::INVAL | Errno::BUSY) => return Owner::Other,
        Err(Errno::NOSYS) => "the kernel has no rseq".into(),
        Err(error) => format!("the kernel refuses rseq ({})", io::Error::from(error)),
    };
    Owner::Nobody(why)
}

/// The check of the registration.
pub fn check(owner: &Owner) -> Check {
    match owner {
        Owner::Libc { bytes, offset } => {
            let offers = match (auxv(AT_RSEQ_FEATURE_SIZE), auxv(AT_RSEQ_ALIGN)) {
                (0, _) => "the kernel names no length (before 6.3)".to_owned(),
                (n, align) => format!("the kernel offers {n} B aligned to {align}"),
            };
            let place = format!("{bytes} B at {offset:+} B from the thread pointer");
            let value = format!("registered by glibc: {place}; {offers}");
            Check::ok("rseq", value)
        }
        Owner::Other => {
            Check::limited("rseq", "registered by another library").known(&known::OTHER_RSEQ)
        }
        Owner::Nobody(why) => {
            Check::limited("rseq", format!("not registered: {why}")).known(&known::NO_RSEQ)
        }
        Owner::Ebbtide(why) => {
            let value = format!("registered by Ebbtide in the program's threads: {why}");
            Check::ok("rseq", value)
        }
    }
}

/// Checks whether the kernel ends a program that writes to the kernel's fields. A child writes to one and changes its
/// CPU, because the kernel checks at that moment (Linux 7.0.10, for lengths above 32 bytes; with rseq debugging, for
/// all lengths).
pub fn enforcement(owner: &Owner) -> Check {
    const ID: &str = "rseq_checked";
    if !matches!(owner, Owner::Libc { .. }) {
        return Check::info(ID, "nothing is registered that the kernel could check");
    }
    let Some(area) = Libc::get().and_then(Libc::area) else {
        return Check::info(ID, "not tried on this processor");
    };
    let value = match child_that_writes(area) {
        Ok(Some(libc::SIGSEGV)) => {
            return Check::info(
                ID,
                "yes: the kernel ends a program that writes to its fields",
            )
            .with_effect(
                "Ebbtide writes none of these fields; the kernel ends a program that does",
            );
        }
        Ok(Some(signal)) => format!("not known: the trial ended by signal {signal}"),
        Ok(None) if allowed_cpus().len() < 2 => "not known: the test needs two CPUs".into(),
        Ok(None) => "no".into(),
        Err(error) => format!("not known: {error}"),
    };
    Check::info(ID, value)
}

fn allowed_cpus() -> Vec<usize> {
    let set = sched_getaffinity(None).unwrap_or_default();
    (0..CpuSet::MAX_CPU)
        .filter(|&cpu| set.is_set(cpu))
        .collect()
}

/// The signal that ended the child, if any.
fn child_that_writes(area: *mut u8) -> io::Result<Option<libc::c_int>> {
    let node = area.wrapping_add(NODE_ID_AT).expose_provenance();
    let cpus = allowed_cpus();
    let write_and_move = move || {
        let core = Rlimit {
            current: Some(0),
            maximum: Some(0),
        };
        let _ = setrlimit(Resource::Core, core);
        let node = ptr::with_exposed_provenance_mut::<u32>(node);
        // SAFETY: plain calls; the area is this thread's own, registered and at least 32 bytes long, and nothing that
        // runs in this child reads the node from there.
        unsafe {
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            node.write_volatile(!node.read_volatile());
        }
        for &cpu in cpus.iter().take(4).chain(cpus.first()) {
            let mut set = CpuSet::new();
            set.set(cpu);
            let _ = sched_setaffinity(None, &set);
            thread::sleep(Duration::from_millis(1));
        }
        // SAFETY: a plain call.
        unsafe { libc::_exit(0) }
    };
    // The child ends before it would become a program.
    let mut child = Command::new("none");
    // SAFETY: the closure makes system calls only, and leaves by `_exit`.
    let status = unsafe { child.pre_exec(write_and_move) }.spawn()?.wait()?;
    Ok(status.signal())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernel_confirms_what_the_c_library_says() {
        let Some(libc) = Libc::get().filter(|l| l.feature_bytes > 0) else {
            eprintln!("skipped: the C library has registered nothing");
            return;
        };
        // The kernel does not confirm a length and place that were not registered: so the answer comes from the
        // kernel.
        let wrong = call(libc.area().unwrap().wrapping_add(64), FIRST_BYTES, 0);
        assert_eq!(wrong.unwrap_err(), Errno::INVAL);
        let Owner::Libc { bytes, offset } = owner() else {
            panic!("{:?}", owner());
        };
        assert!(bytes >= FIRST_BYTES && offset == libc.offset);
        assert_eq!(without(true), Owner::Other, "somebody is registered");
    }

    #[test]
    fn the_signal_that_ends_the_child_is_seen() {
        let signal = child_that_writes(ptr::null_mut()).unwrap();
        assert_eq!(signal, Some(libc::SIGSEGV));
    }

    #[test]
    fn a_thread_without_a_registration() {
        let Some(libc) = Libc::get().filter(|l| l.feature_bytes > 0) else {
            eprintln!("skipped: the C library has registered nothing");
            return;
        };
        let seen = std::thread::spawn(move || {
            let bytes = libc.feature_bytes.max(FIRST_BYTES);
            call(libc.area().unwrap(), bytes, UNREGISTER).unwrap();
            (without(false), without(true), registered_by(libc))
        });
        let (early, late, wrong) = seen.join().unwrap();
        for owner in [early, late] {
            assert!(matches!(owner, Owner::Ebbtide(_)), "{owner:?}");
        }
        assert!(matches!(wrong, Owner::Nobody(_)), "{wrong:?}");
        assert!(check(&wrong).remedy.contains("5.10"));
    }
}
