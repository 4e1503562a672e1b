//! Runs a unit test in a process of its own.
//!
//! The heap, its configuration and the latches of `features` exist once for the whole process, and a latch never clears
//! after a refusal. So some tests run in a second process: tests that count frames, need a configuration, or make the
//! kernel refuse calls. The second process is the test binary itself, with a filter that names this one test.

extern crate std;

use crate::front::heap;
use crate::reclaim::Heap;
use ebbtide_sys::{process, vm};
use ebbtide_zone::{BLOCK_BYTES, Block, FRAME_BYTES, Frame};
use std::process::Command;
use std::{env, eprint};

/// Set in the second process to the name of its test.
const MARK: &str = "EBBTIDE_TEST_ALONE";

/// A configuration under which nothing is released to the kernel unless the test asks for it.
pub const CALM: &str = "workers=0,pressure=off,lazyfree=off,thp=off,retain_ms=3600000";

/// The same without restartable sections.
pub const PORTABLE: &str = "rseq=off,workers=0,pressure=off,lazyfree=off,thp=off,retain_ms=3600000";

/// Runs a test on a heap of its own under the configuration `conf`. The test is a closure in the test function; the
/// closure's type names the path of that function. A function in place of a closure would name itself.
pub fn alone<T: FnOnce(&'static Heap)>(conf: &str, test: T) {
    let path = core::any::type_name::<T>();
    let path = path.strip_suffix("::{{closure}}").expect("a closure");
    let (_, name) = path.split_once("::").expect("a path in this crate");
    if env::var(MARK).as_deref() == Ok(name) {
        let inside = heap().expect("a heap").enter_uncounted();
        return test(std::boxed::Box::leak(std::boxed::Box::new(inside)));
    }
    let output = Command::new(env::current_exe().expect("the test binary"))
        .args([name, "--exact", "--nocapture"])
        .env(MARK, name)
        .env("EBBTIDE_CONF", conf)
        .output()
        .expect("a second process");
    let (stdout, stderr) = (
        std::string::String::from_utf8_lossy(&output.stdout),
        std::string::String::from_utf8_lossy(&output.stderr),
    );
    // A filter that matches no test is a success for the test runner.
    let passed = output.status.success() && stdout.contains("1 passed");
    assert!(passed, "{name} in a process of its own: {stdout}{stderr}");
    // The test may print that it was skipped.
    eprint!("{stderr}");
}

/// From now on the kernel refuses `call` to this thread with `EPERM`, if all `bits` are set in its argument `index`.
pub fn refuse(call: libc::c_long, index: u32, bits: u32) {
    const JUMP_IF_EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    let line = |code: u32, jt, jf, k| libc::sock_filter {
        code: code as u16,
        jt,
        jf,
        k,
    };
    let mut lines = [
        line(LOAD, 0, 0, 0),
        line(JUMP_IF_EQUAL, 0, 4, call as u32),
        // The low half of the argument, on a little-endian machine.
        line(LOAD, 0, 0, 16 + 8 * index),
        line(libc::BPF_ALU | libc::BPF_AND | libc::BPF_K, 0, 0, bits),
        line(JUMP_IF_EQUAL, 0, 1, bits),
        line(
            libc::BPF_RET,
            0,
            0,
            libc::SECCOMP_RET_ERRNO | libc::EPERM as u32,
        ),
        line(libc::BPF_RET, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog {
        len: lines.len() as u16,
        filter: lines.as_mut_ptr(),
    };
    // SAFETY: plain calls; the kernel copies the program.
    unsafe {
        assert_eq!(libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
        let mode = libc::SECCOMP_MODE_FILTER;
        assert_eq!(
            libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const program),
            0
        );
    }
}

/// From now on the kernel refuses this thread's releases: neither advice nor a fresh mapping works.
pub fn refuse_release() {
    refuse(libc::SYS_madvise, 0, 0);
    refuse(libc::SYS_process_madvise, 0, 0);
    refuse(libc::SYS_mmap, 3, libc::MAP_FIXED as u32);
}

/// Keeps this thread on its current CPU. Returns the CPU's number.
pub fn stay_here() -> usize {
    let cpu = process::current_cpu_raw();
    stay_on(cpu);
    cpu
}

/// Keeps this thread on a CPU.
pub fn stay_on(cpu: usize) {
    // SAFETY: plain libc calls on a local set.
    let moved = unsafe {
        let mut set: libc::cpu_set_t = core::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, size_of_val(&set), &raw const set)
    };
    assert_eq!(moved, 0);
}

/// Fills memory.
pub fn fill(address: usize, bytes: usize, value: u8) {
    // SAFETY: memory of the test's.
    unsafe { (address as *mut u8).write_bytes(value, bytes) };
}

/// Whether memory holds nothing but `value`.
pub fn holds(address: usize, bytes: usize, value: u8) -> bool {
    let page = [value; FRAME_BYTES];
    // SAFETY: memory of the test's.
    let bytes = unsafe { core::slice::from_raw_parts(address as *const u8, bytes) };
    bytes
        .chunks(page.len())
        .all(|chunk| chunk == &page[..chunk.len()])
}

/// Frees a run of `frames` that was written to, past every cache. The frame behind the run stays in use, so that
/// the block is only partly free. Returns the run's first frame.
pub fn dirty_run(heap: &Heap, frames: u32) -> Frame {
    let run = heap.take_run(frames + 1, 1).expect("memory");
    fill(
        heap.region().address(run.first),
        frames as usize * FRAME_BYTES,
        0xa5,
    );
    heap.put_run(run.first, frames, frames);
    run.first
}

/// The same for whole blocks.
pub fn dirty_blocks(heap: &Heap, blocks: u32) -> Block {
    let extent = heap.take_blocks(blocks, 1, 0).expect("memory");
    let address = heap.region().address(extent.first.first_frame());
    fill(address, blocks as usize * BLOCK_BYTES, 0xa5);
    heap.put_blocks(extent.first, blocks, blocks);
    extent.first
}

/// Resident pages of a range.
pub fn resident(address: usize, bytes: usize) -> usize {
    let pages = (address..address + bytes).step_by(vm::page());
    pages.filter(|&page| vm::is_resident(page)).count()
}
