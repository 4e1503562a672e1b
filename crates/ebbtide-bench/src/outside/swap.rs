//! Sets up swap and a memory cgroup for the time of a benchmark, and removes them in any case.
//!
//! A keeper process with a session of its own sets both up, reports them, and waits for the end of its input. The
//! input ends when the benchmark ends in any way, killed or not. Then the keeper kills the processes that are left in
//! the cgroup, and removes everything.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail, ensure};
use ebbtide_tools::out;
use rustix::fs::{CWD, FileType, Mode, makedev, mknodat};
use rustix::path::Arg;
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
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Kept {
    /// A description of the swap, for people.
    pub swap: String,
    /// The memory cgroup.
    pub group: Option<PathBuf>,
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
        let said = child.stdout.take().context("no pipe")?;
        let mut keeper = Keeper {
            kept: Kept::default(),
            input: child.stdin.take(),
            child,
        };
        let mut line = String::new();
        BufReader::new(said).read_line(&mut line)?;
        let kept: Result<Kept, String> =
            serde_json::from_str(&line).context("the keeper of the swap has ended")?;
        keeper.kept = kept.map_err(|error| anyhow!("no swap can be set up here: {error}"))?;
        Ok(keeper)
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
    let made = match bytes {
        0 => Ok(None),
        _ => Swap::new(bytes, dir.path()).map(Some),
    };
    let group = make_group();
    let about = |swap: &Option<Swap>| swap.as_ref().map_or(String::new(), |s| s.about.clone());
    let kept = made.as_ref().map(|swap| Kept {
        swap: about(swap),
        group: group.clone(),
    });
    let kept = kept.map_err(|error| format!("{error:#}"));
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
    /// In compressed memory if the kernel has that, else in a file.
    fn new(bytes: u64, dir: &Path) -> Result<Self> {
        Swap::zram(bytes, dir).or_else(|zram| {
            let file = Swap::file(bytes, dir);
            file.map_err(|file| anyhow!("zram: {zram:#}; file: {file:#}"))
        })
    }

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
        options.write(true).create_new(true).mode(0o600);
        let file = options.open(&path)?;
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
        let path = self.path.as_path().into_c_str()?;
        // SAFETY: a NUL-terminated path.
        let on = unsafe { libc::swapon(path.as_ptr(), SWAP_FLAG_PREFER | PRIORITY) };
        ensure!(on == 0, "swapon: {}", std::io::Error::last_os_error());
        Ok(())
    }

    fn remove(self) -> Result<()> {
        let path = self.path.as_path().into_c_str()?;
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
        if file_of(&dir, LIMIT).is_some() {
            return Some(dir);
        }
        let _ = fs::remove_dir(&dir);
        None
    })
}

/// The limit of a group, by its names in both versions.
const LIMIT: [&str; 2] = ["memory.max", "memory.limit_in_bytes"];

/// The file of a group that has one of these names.
fn file_of(group: &Path, names: [&str; 2]) -> Option<PathBuf> {
    let mut files = names.iter().map(|name| group.join(name));
    files.find(|file| file.exists())
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).with_context(|| format!("cannot write {}", file.display()))
}

/// Memory in use by the group's processes.
pub fn group_usage_bytes(group: &Path) -> Result<u64> {
    let file = file_of(group, ["memory.current", "memory.usage_in_bytes"]);
    let text = fs::read_to_string(file.context("no usage in the cgroup")?)?;
    Ok(text.trim().parse()?)
}

/// Sets the group's memory limit; `None` removes it.
pub fn limit_group(group: &Path, bytes: Option<u64>) -> Result<()> {
    let file = file_of(group, LIMIT).context("the cgroup has no limit")?;
    let none = match file.ends_with(LIMIT[0]) {
        true => "max",
        false => "-1",
    };
    write(&file, &bytes.map_or(none.into(), |n| n.to_string()))
}

/// Makes the process join the group before it runs the program.
pub fn join(command: &mut Command, group: &Path) -> Result<()> {
    let file = group.join("cgroup.procs");
    let procs = File::options().write(true).open(&file);
    let procs = procs.with_context(|| format!("cannot open {}", file.display()))?;
    // SAFETY: one write between fork and exec, of bytes that exist.
    unsafe {
        command.pre_exec(move || (&procs).write_all(b"0"));
    }
    Ok(())
}

/// Keeps the group's processes out of swap, whatever swap the machine has.
pub fn forbid_swap(group: &Path) -> Result<()> {
    match file_of(group, ["memory.swap.max", "memory.swappiness"]) {
        Some(file) => write(&file, "0"),
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
