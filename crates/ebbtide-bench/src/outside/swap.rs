//! Sets up swap and a memory cgroup for the time of a benchmark, and removes them in any case.
//!
//! A keeper process with a session of its own sets both up, reports them, and waits for the end of its input. The
//! input ends when the benchmark ends in any way, killed or not. Then the keeper kills the processes that are left in
//! the cgroup, and removes everything.

use std::ffi::CString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use ebbtide_tools::out;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::process::{Pid, Signal, geteuid, kill_process, setsid};
use rustix::system::sysinfo;
use serde::{Deserialize, Serialize};

use crate::measured::calls::page_bytes;
use crate::measured::{Output, worker};

const CONTROL: &str = "/sys/class/zram-control";
/// A higher priority than any swap that exists already.
const PRIORITY: i32 = 0x7fff;
const SWAP_FLAG_PREFER: i32 = 0x8000;

/// The things that a keeper has set up.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Kept {
    /// A description of the swap, for people.
    pub swap: String,
    /// The memory cgroup.
    pub group: Option<PathBuf>,
    /// The reason why there is nothing.
    error: Option<String>,
}

/// A running keeper.
pub struct Keeper {
    /// The things that it has set up.
    pub kept: Kept,
    child: Child,
    input: Option<ChildStdin>,
}

impl Keeper {
    /// Sets up swap of `bytes` bytes: in compressed memory if the kernel has that, else in a file. For 0 bytes, sets
    /// up only a memory cgroup.
    pub fn start(bytes: u64) -> Result<Self> {
        ensure!(
            geteuid().is_root(),
            "needs root, to set up swap or a memory cgroup for the time of the run"
        );
        let mut child = worker("swap_keeper", bytes)?
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start")?;
        let input = child.stdin.take();
        let mut line = String::new();
        let said = child.stdout.take().context("no pipe")?;
        BufReader::new(said).read_line(&mut line)?;
        let kept: Kept = serde_json::from_str(&line).context("the keeper of the swap has ended")?;
        let keeper = Keeper { kept, child, input };
        match &keeper.kept.error {
            Some(error) => bail!("no swap can be set up here: {error}"),
            None => Ok(keeper),
        }
    }

    /// The memory cgroup.
    pub fn group(&self) -> Result<&Path> {
        let group = self.kept.group.as_deref();
        group.context(
            "no memory cgroup can be made here (version 1, or 2 with the memory controller)",
        )
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        drop(self.input.take());
        match self.child.wait() {
            Ok(status) if status.success() => {}
            _ => out::warning("the swap could not be removed; see 'swapon --show'"),
        }
    }
}

/// Runs the keeper's process.
pub fn keep(bytes: u64) -> Result<Output> {
    // The signal that ends the benchmark must not end the keeper.
    let _ = setsid();
    // SAFETY: numbers only.
    unsafe {
        for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGHUP, libc::SIGPIPE] {
            libc::signal(signal, libc::SIG_IGN);
        }
    }
    let dir = tempfile::tempdir().context("cannot make a temporary directory; set TMPDIR")?;
    let made = if bytes == 0 {
        Ok(None)
    } else {
        let made = Swap::zram(bytes, dir.path()).or_else(|zram| {
            Swap::file(bytes, dir.path()).map_err(|file| anyhow!("zram: {zram:#}; file: {file:#}"))
        });
        made.map(Some)
    };
    let group = make_group();
    let kept = Kept {
        swap: match &made {
            Ok(Some(swap)) => swap.about.clone(),
            _ => String::new(),
        },
        group: group.clone(),
        error: made.as_ref().err().map(|e| format!("{e:#}")),
    };
    out::stdout((serde_json::to_string(&kept)? + "\n").as_bytes());
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    if let Some(group) = group {
        remove_group(&group);
    }
    if let Ok(Some(swap)) = made {
        swap.remove()?;
    }
    drop(dir);
    std::process::exit(0)
}

struct Swap {
    about: String,
    path: PathBuf,
    /// The device's number, if this keeper made the device.
    zram: Option<String>,
}

impl Swap {
    /// Makes a compressed device.
    fn zram(bytes: u64, dir: &Path) -> Result<Self> {
        let number = fs::read_to_string(format!("{CONTROL}/hot_add")).context("no zram here")?;
        let number = number.trim().to_owned();
        let mut swap = Swap {
            about: String::new(),
            path: dir.join("zram"),
            zram: Some(number.clone()),
        };
        let made = swap.set_up(bytes, &PathBuf::from(format!("/sys/block/zram{number}")));
        if let Err(error) = made {
            let _ = swap.remove_device();
            return Err(error);
        }
        Ok(swap)
    }

    fn set_up(&mut self, bytes: u64, sys: &Path) -> Result<()> {
        // lz4 is fast, and phones use it; otherwise the kernel's default.
        let _ = fs::write(sys.join("comp_algorithm"), "lz4");
        fs::write(sys.join("disksize"), bytes.to_string()).context("disksize is refused")?;
        let algorithms = fs::read_to_string(sys.join("comp_algorithm"))?;
        let chosen = algorithms.split(['[', ']']).nth(1).unwrap_or("?");
        self.about = format!("zram of {}, {chosen}", out::bytes(bytes));
        // A device node of its own: /dev may not have it yet, or never in a container.
        let number = fs::read_to_string(sys.join("dev"))?;
        let (major, minor) = number.trim().split_once(':').context("no device number")?;
        let device = makedev(major.parse()?, minor.parse()?);
        let mode = Mode::RUSR | Mode::WUSR;
        mknodat(CWD, &self.path, FileType::BlockDevice, mode, device).context("mknod")?;
        self.switch_on(bytes)
    }

    /// Makes a swap file.
    fn file(bytes: u64, dir: &Path) -> Result<Self> {
        let path = dir.join("swap");
        let mut options = File::options();
        let file = options
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&path)?;
        let zeros = vec![0u8; 1 << 20];
        for at in (0..bytes).step_by(zeros.len()) {
            file.write_all_at(&zeros, at)?;
        }
        file.sync_all()?;
        let about = format!("a file of {} in {}", out::bytes(bytes), dir.display());
        let swap = Swap {
            about,
            path,
            zram: None,
        };
        swap.switch_on(bytes)?;
        Ok(swap)
    }

    fn switch_on(&self, bytes: u64) -> Result<()> {
        let file = File::options().write(true).open(&self.path)?;
        file.write_all_at(&header(bytes), 0)?;
        file.sync_all()?;
        let path = c_path(&self.path)?;
        // SAFETY: a NUL-terminated path.
        let on = unsafe { libc::swapon(path.as_ptr(), SWAP_FLAG_PREFER | PRIORITY) };
        ensure!(on == 0, "swapon: {}", std::io::Error::last_os_error());
        Ok(())
    }

    fn remove(self) -> Result<()> {
        let path = c_path(&self.path)?;
        // SAFETY: a NUL-terminated path.
        let off = unsafe { libc::swapoff(path.as_ptr()) };
        ensure!(off == 0, "swapoff: {}", std::io::Error::last_os_error());
        self.remove_device()
    }

    fn remove_device(&self) -> Result<()> {
        let Some(number) = &self.zram else {
            return Ok(());
        };
        // The device is busy for a moment after its use.
        for _ in 0..100 {
            let _ = fs::write(format!("/sys/block/zram{number}/reset"), "1");
            if fs::write(format!("{CONTROL}/hot_remove"), number).is_ok() {
                return Ok(());
            }
            sleep(Duration::from_millis(20));
        }
        bail!("zram{number} stays")
    }
}

fn c_path(path: &Path) -> Result<CString> {
    Ok(CString::new(path.as_os_str().as_bytes())?)
}

/// The first page of a swap area, as `mkswap` writes it.
fn header(bytes: u64) -> Vec<u8> {
    const MAGIC: &[u8] = b"SWAPSPACE2";
    let mut page = vec![0u8; page_bytes()];
    let last_page = (bytes / page.len() as u64 - 1) as u32;
    page[1024..1028].copy_from_slice(&1u32.to_ne_bytes());
    page[1028..1032].copy_from_slice(&last_page.to_ne_bytes());
    let at = page.len() - MAGIC.len();
    page[at..].copy_from_slice(MAGIC);
    page
}

/// Makes a memory cgroup of either version.
fn make_group() -> Option<PathBuf> {
    let name = format!("ebbtide-bench-{}", std::process::id());
    let roots = ["/sys/fs/cgroup", "/sys/fs/cgroup/memory"];
    roots.iter().find_map(|root| {
        let dir = Path::new(root).join(&name);
        fs::create_dir(&dir).ok()?;
        if limit_file(&dir).is_some() {
            return Some(dir);
        }
        let _ = fs::remove_dir(&dir);
        None
    })
}

fn limit_file(group: &Path) -> Option<PathBuf> {
    ["memory.max", "memory.limit_in_bytes"]
        .map(|name| group.join(name))
        .into_iter()
        .find(|file| file.exists())
}

/// Memory in use by the group's processes.
pub fn group_usage_bytes(group: &Path) -> Result<u64> {
    let text = ["memory.current", "memory.usage_in_bytes"]
        .iter()
        .find_map(|name| fs::read_to_string(group.join(name)).ok());
    Ok(text.context("no usage in the cgroup")?.trim().parse()?)
}

/// Sets the group's memory limit; `None` removes it.
pub fn limit_group(group: &Path, bytes: Option<u64>) -> Result<()> {
    let file = limit_file(group).context("the cgroup has no limit")?;
    let text = bytes.map_or_else(
        || {
            if file.ends_with("memory.max") {
                "max"
            } else {
                "-1"
            }
            .into()
        },
        |n| n.to_string(),
    );
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// Makes the process join the group before it runs the program.
pub fn join(command: &mut Command, group: &Path) -> Result<()> {
    let file = group.join("cgroup.procs");
    let procs = std::fs::File::options().write(true).open(&file);
    let procs = procs.with_context(|| format!("cannot open {}", file.display()))?;
    // SAFETY: one write between fork and exec, of bytes that exist.
    unsafe {
        command.pre_exec(move || (&procs).write_all(b"0"));
    }
    Ok(())
}

/// Keeps the group's processes out of swap, whatever swap the machine has.
pub fn forbid_swap(group: &Path) -> Result<()> {
    let file = ["memory.swap.max", "memory.swappiness"]
        .map(|name| group.join(name))
        .into_iter()
        .find(|file| file.exists());
    match file {
        Some(file) => {
            fs::write(&file, "0").with_context(|| format!("cannot write {}", file.display()))
        }
        // The kernel has no swap.
        None => Ok(()),
    }
}

fn remove_group(group: &Path) {
    let _ = limit_group(group, None);
    for _ in 0..200 {
        let inside = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
        // Only processes of the benchmark are in its group.
        let pids = inside.lines().filter_map(|line| line.parse().ok());
        for pid in pids.filter_map(Pid::from_raw) {
            let _ = kill_process(pid, Signal::KILL);
        }
        if fs::remove_dir(group).is_ok() {
            return;
        }
        sleep(Duration::from_millis(20));
    }
}

/// Bytes written to swap since the machine started.
pub fn written_bytes() -> Result<u64> {
    let text = fs::read_to_string("/proc/vmstat").context("cannot read /proc/vmstat")?;
    let pages = text.lines().find_map(|l| l.strip_prefix("pswpout "));
    let pages: u64 = pages.map_or(Ok(0), |n| n.trim().parse())?;
    Ok(pages * page_bytes() as u64)
}

/// Bytes of swap in use.
pub fn used_bytes() -> u64 {
    let info = sysinfo();
    (info.totalswap - info.freeswap) * u64::from(info.mem_unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_is_what_the_kernel_looks_for() {
        let page = header(64 << 20);
        assert_eq!(page.len(), page_bytes());
        assert!(page.ends_with(b"SWAPSPACE2"));
        let pages = (64 << 20) / page_bytes() as u32;
        assert_eq!(page[1028..1032], (pages - 1).to_ne_bytes());
    }

    #[test]
    fn used_is_at_most_all() {
        let text = fs::read_to_string("/proc/meminfo").unwrap();
        let total = ebbtide_tools::proc::kib_field(&text, "SwapTotal").unwrap();
        assert!(used_bytes() <= total);
    }
}
