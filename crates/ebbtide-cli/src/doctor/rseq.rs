//! Checks restartable sequences: which library registered them for this thread, with which length and where, and
//! whether the kernel checks the fields that only the kernel may write.
//!
//! A second registration with the same address, length and signature fails with `EBUSY`; with other values it fails
//! with `EINVAL`. So the kernel's answer shows what is registered.

use std::io;
use std::ptr;

use super::Check;
use ebbtide_interface::known;

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

const EFFECT: &str = "per-CPU caches without locks";

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
fn call(area: *mut u8, bytes: u32, flags: libc::c_int) -> io::Result<()> {
    // SAFETY: `area` is memory of this process that stays, or the kernel refuses it.
    match unsafe { libc::syscall(libc::SYS_rseq, area, bytes, flags, SIGNATURE) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
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
    let said = Owner::Libc {
        bytes: libc.feature_bytes.max(FIRST_BYTES),
        offset: libc.offset,
    };
    let Some(area) = libc.area() else { return said };
    let kernels = auxv(AT_RSEQ_FEATURE_SIZE) as u32;
    for bytes in [libc.feature_bytes.max(FIRST_BYTES), FIRST_BYTES, kernels] {
        match call(area, bytes, 0) {
            Err(e) if e.raw_os_error() == Some(libc::EBUSY) => {
                let offset = libc.offset;
                return Owner::Libc { bytes, offset };
            }
            // The registration has another length or another place.
            Err(e) if e.raw_os_error() == Some(libc::EINVAL) => {}
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
    match call(area, FIRST_BYTES, 0) {
        Ok(()) => {
            let _ = call(area, FIRST_BYTES, UNREGISTER);
            let tunables = std::env::var("GLIBC_TUNABLES").unwrap_or_default();
            Owner::Ebbtide(if !is_known {
                "glibc registers from 2.35 on".into()
            } else if tunables.contains("glibc.pthread.rseq=0") {
                "GLIBC_TUNABLES has glibc.pthread.rseq=0".into()
            } else {
                "glibc has not registered, though it could".into()
            })
        }
        Err(e) if matches!(e.raw_os_error(), Some(libc::EINVAL | libc::EBUSY)) => Owner::Other,
        Err(e) if e.raw_os_error() == Some(libc::ENOSYS) => {
            Owner::Nobody("the kernel has no rseq".into())
        }
        Err(e) => Owner::Nobody(format!("the kernel refuses rseq ({e})")),
    }
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
            Check::ok("rseq", value, EFFECT)
        }
        Owner::Ebbtide(why) => {
            let value = format!("registered by Ebbtide in the program's threads: {why}");
            Check::ok("rseq", value, EFFECT)
        }
        Owner::Other => of(&known::OTHER_RSEQ, "registered by another library"),
        Owner::Nobody(why) => of(&known::NO_RSEQ, &format!("not registered: {why}")),
    }
}

fn of(known: &known::Known, value: &str) -> Check {
    Check::limited("rseq", value, known.happens, known.remedy)
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
    match child_that_writes(area) {
        Ok(Some(libc::SIGSEGV)) => Check {
            effect: "Ebbtide writes none of these fields; the kernel ends a program that does"
                .into(),
            ..Check::info(
                ID,
                "yes: the kernel ends a program that writes to its fields",
            )
        },
        Ok(Some(signal)) => {
            Check::info(ID, format!("not known: the trial ended by signal {signal}"))
        }
        Ok(None) if allowed_cpus().len() < 2 => {
            Check::info(ID, "not known: the test needs two CPUs")
        }
        Ok(None) => Check::info(ID, "no"),
        Err(error) => Check::info(ID, format!("not known: {error}")),
    }
}

fn allowed_cpus() -> Vec<usize> {
    // SAFETY: cpu_set_t is plain data; the call fills at most its size, and the numbers are below that.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        match libc::sched_getaffinity(0, size_of_val(&set), &mut set) {
            0 => (0..libc::CPU_SETSIZE as usize)
                .filter(|&cpu| libc::CPU_ISSET(cpu, &set))
                .collect(),
            _ => Vec::new(),
        }
    }
}

/// The signal that ended the child, if any.
fn child_that_writes(area: *mut u8) -> io::Result<Option<libc::c_int>> {
    let cpus = allowed_cpus();
    // SAFETY: the child makes system calls only, and leaves by `_exit`.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(io::Error::last_os_error());
    }
    if pid == 0 {
        // SAFETY: plain calls; the area is this thread's own, registered and at least 32 bytes long, and nothing that
        // runs in this child reads the node from there.
        unsafe {
            let none = libc::rlimit {
                rlim_cur: 0,
                rlim_max: 0,
            };
            libc::setrlimit(libc::RLIMIT_CORE, &none);
            libc::signal(libc::SIGSEGV, libc::SIG_DFL);
            let node = area.add(NODE_ID_AT).cast::<u32>();
            node.write_volatile(!node.read_volatile());
            let pause = libc::timespec {
                tv_sec: 0,
                tv_nsec: 1_000_000,
            };
            for &cpu in cpus.iter().take(4).chain(cpus.first()) {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                libc::CPU_SET(cpu, &mut set);
                libc::sched_setaffinity(0, size_of_val(&set), &set);
                libc::nanosleep(&pause, ptr::null_mut());
            }
            libc::_exit(0);
        }
    }
    let mut status = 0;
    // SAFETY: `status` is a valid place to write to.
    while unsafe { libc::waitpid(pid, &mut status, 0) } < 0 {
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    Ok(libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status)))
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
        assert_eq!(wrong.unwrap_err().raw_os_error(), Some(libc::EINVAL));
        let Owner::Libc { bytes, offset } = owner() else {
            panic!("{:?}", owner());
        };
        assert!(bytes >= FIRST_BYTES && offset == libc.offset);
        assert_eq!(without(true), Owner::Other, "somebody is registered");
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
        assert!(check(&wrong).remedy.contains("4.18"));
    }
}
