//! A process with all processes below it: its memory, its CPU time, its end.

use std::os::unix::process::CommandExt;
use std::process::{Child, Command};

use anyhow::{Context, Result};
use ebbtide_tools::proc::{self, children_of_main_thread, kib_field};
use rustix::process::{Pid, Signal, kill_process_group};

/// A process group that is ended when this is dropped.
pub struct Group(pub Child);

impl Group {
    /// Starts a command in a group of its own.
    pub fn start(command: &mut Command) -> Result<Self> {
        let child = command.process_group(0).spawn();
        Ok(Group(child.context("cannot start")?))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        if let Some(pid) = i32::try_from(self.0.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(pid, Signal::KILL);
        }
        let _ = self.0.wait();
    }
}

/// A process and all that descend from it by main threads.
pub fn all(pid: u32) -> Vec<u32> {
    let below = children_of_main_thread(pid).into_iter().flat_map(all);
    [pid].into_iter().chain(below).collect()
}

/// Memory of a process tree that is not of files, with its part in swap. A page that processes share counts once.
pub fn memory_bytes(pid: u32) -> u64 {
    let memory = all(pid).into_iter().map(|pid| {
        let text = proc::text(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let fields = ["Pss_Anon", "Pss_Shmem", "SwapPss"];
        let fields = fields.iter().filter_map(|name| kib_field(&text, name));
        fields.sum::<u64>()
    });
    memory.sum()
}

/// CPU time of a process tree so far, with that of descendants that have ended and were waited for: all of it, and
/// that in the kernel.
pub fn cpu_s(pid: u32) -> (f64, f64) {
    // SAFETY: takes a number, returns a number.
    let per_s = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    let times = all(pid).into_iter().filter_map(|pid| {
        let text = proc::text(format!("/proc/{pid}/stat"))?;
        let numbers = text.rsplit_once(')')?.1.split_whitespace().skip(11);
        let ticks: Vec<f64> = numbers.take(4).filter_map(|n| n.parse().ok()).collect();
        match ticks[..] {
            [user, kernel, users, kernels] => Some((user + users, kernel + kernels)),
            _ => None,
        }
    });
    let (user, kernel) = times.fold((0.0, 0.0), |sum, one| (sum.0 + one.0, sum.1 + one.1));
    ((user + kernel) / per_s, kernel / per_s)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::process::Stdio;

    #[test]
    fn a_tree_has_the_memory_and_time_of_its_children() {
        // The shell below keeps a text of 8 MiB; the inner one has ended before.
        let script = "sh -c 'i=0; while [ $i -lt 300000 ]; do i=$((i + 1)); done'
            sh -c 'x=$(head -c 8388608 /dev/zero | tr \"\\\\0\" x); echo ready; read y; echo ${#x}'";
        let mut command = Command::new("sh");
        command.args(["-c", script, "sh"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut group = Group::start(&mut command).unwrap();
        let mut said = group.0.stdout.take().unwrap();
        said.read_exact(&mut [0; 6]).unwrap();
        let root = group.0.id();
        assert!(all(root).len() >= 2 && all(root)[0] == root);
        let memory = memory_bytes(root);
        assert!((8 << 20..64 << 20).contains(&memory), "{memory}");
        let (all_s, kernel_s) = cpu_s(root);
        assert!(all_s >= 0.05 && kernel_s <= all_s, "{all_s} {kernel_s}");
        group.0.stdin.take().unwrap().write_all(b"\n").unwrap();
        let mut rest = String::new();
        said.read_to_string(&mut rest).unwrap();
        assert_eq!(rest.trim(), "8388608");
        drop(group);
        assert_eq!(memory_bytes(root), 0);
    }
}
