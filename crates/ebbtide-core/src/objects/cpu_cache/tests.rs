//! The table of slabs as the fast paths read it.

extern crate std;
use super::*;
use std::boxed::Box;

/// The most CPUs that Linux supports on x86-64.
const LINUX_CPUS: isize = 8192;

fn started() -> (Box<CpuCaches>, Stacks) {
    let caches = Box::new(CpuCaches::new());
    // SAFETY: its first use.
    let stacks = unsafe { caches.start(&Config::DEFAULT) }.expect("address space");
    (caches, stacks)
}

/// For any `cpu_id`, the table entry says exactly "parked" until the CPU's slab is live.
#[test]
fn every_cpu_id_has_an_entry_that_is_parked_at_first() {
    let (caches, stacks) = started();
    for cpu in -2..LINUX_CPUS {
        let place = stacks.table.wrapping_add_signed(cpu * 8);
        assert_ne!(place, std::ptr::from_ref(caches.wipe_word()).addr());
        // SAFETY: that this is a mapped word is what is tested.
        assert_eq!(unsafe { *(place as *const usize) }, 0, "entry of CPU {cpu}");
    }
}

/// The kernel wipes whole pages at a fork, and the headers of the parked slab are not in them.
#[test]
fn the_table_ends_with_a_page() {
    for page in ebbtide_interface::known::PAGE_SIZES {
        let (table_end, slab) = places(page);
        assert!(table_end.is_multiple_of(page) && table_end >= TABLE_BYTES);
        assert!((table_end..table_end + page + STACK_BYTES).contains(&slab));
        assert_eq!(slab % STACK_BYTES, SLAB_SKEW);
    }
    assert_eq!(places(4096), (17 * 4096, 17 * 4096));
}

/// After a fork without handlers, every entry must be wiped; the slabs behind live entries may be in use.
#[test]
fn a_fork_wipes_every_entry() {
    let (caches, stacks) = started();
    if WIPE_ON_FORK.known() != Some(true) {
        return std::eprintln!("skipped: no MADV_WIPEONFORK");
    }
    let set = |value: usize| {
        for cpu in -2..LINUX_CPUS {
            let place = stacks.table.wrapping_add_signed(cpu * 8) as *mut usize;
            // SAFETY: an entry of a table that no other thread uses.
            unsafe { place.write_volatile(value) };
        }
    };
    set(8);
    // SAFETY: the child only makes system calls and reads memory.
    let child = unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) };
    if child == 0 {
        let wiped = (-2..LINUX_CPUS).all(|cpu| {
            let place = stacks.table.wrapping_add_signed(cpu * 8) as *const usize;
            // SAFETY: as above.
            unsafe { place.read_volatile() == 0 }
        });
        let good = wiped && caches.was_forked();
        // SAFETY: ends the child.
        unsafe { libc::_exit(i32::from(!good)) };
    }
    let mut status = -1;
    // SAFETY: waits for our own child.
    let waited = unsafe { libc::waitpid(child as i32, &raw mut status, 0) };
    assert_eq!((waited as i64, status), (child, 0));
}
