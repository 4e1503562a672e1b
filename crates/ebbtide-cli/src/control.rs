//! `ebbtide release` and `ebbtide set`: ask a running process through its statistics page.
//!
//! The page belongs to the process's user, so only that user and root can ask. No signal is sent. A worker of the process answers within
//! 0.5 s. Without a worker, its next slow call of `malloc` or `free` does.

use std::io::ErrorKind;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use ebbtide_interface::page::{MAX_REQUEST_BYTES, RELEASE};
use ebbtide_interface::{FEATURES, keys};
use ebbtide_tools::out;
use ebbtide_tools::proc::Stat;
use ebbtide_tools::stats_page::StatsPage;

use crate::cli::{ReleaseArgs, SetArgs};
use crate::top::find::{self, Scope};

/// The exit status if the process did not answer in time: the request stays.
const LATER: u8 = 75;
/// The call by which a process reads a request.
const COPY: &str = "process_vm_writev";
const POLL: Duration = Duration::from_millis(5);

/// Lets the process release all free memory.
pub fn release(args: &ReleaseArgs) -> Result<u8> {
    let text = String::from_utf8_lossy(RELEASE);
    let Some(after) = ask(args, &text)? else {
        return Ok(LATER);
    };
    out::stdout(format!("{} released\n", out::bytes(after.request_result)).as_bytes());
    Ok(0)
}

/// Changes a key.
pub fn set(args: &SetArgs) -> Result<u8> {
    if let Err(problem) = keys::read(args.item.as_bytes()) {
        bail!("'{}': {problem}", args.item);
    }
    match ask(&args.request, &args.item)? {
        Some(after) if after.request_result == 0 => Ok(0),
        Some(after) if after.request_result == 1 => bail!(
            "process {} does not know '{}': its library has another version",
            args.request.pid,
            args.item
        ),
        Some(_) => bail!(
            "'{}' cannot change while the program runs; these can: retain_ms, limit. Set it in EBBTIDE_CONF and start the program again",
            args.item
        ),
        None => Ok(LATER),
    }
}

/// Writes the request and waits for the answer: the figures after it. `None`: there was none in time.
fn ask(args: &ReleaseArgs, text: &str) -> Result<Option<StatsPage>> {
    let pid = args.pid;
    if text.len() > MAX_REQUEST_BYTES {
        bail!("'{text}' is too long: at most {MAX_REQUEST_BYTES} bytes");
    }
    let found = find::search(&Scope::Pids(vec![pid])).found.pop();
    let Some(page) = found.and_then(|found| found.page) else {
        bail!(
            "process {pid} keeps no statistics page that this user can read; 'ebbtide top {pid}' says why"
        );
    };
    let refused = page.read().map_or(0, |page| page.refused);
    let mut features = FEATURES.iter().enumerate();
    if features.any(|(bit, &name)| name == COPY && refused >> bit & 1 == 1) {
        bail!(
            "process {pid} cannot read requests: {COPY} is refused to it, by a filter or by syscalls=basic; it can call ebb_release and ebb_set itself"
        );
    }
    // Kept open until the answer: other observers wait.
    let (number, _file) = match page.request(text) {
        Ok(request) => request,
        Err(error) if error.kind() == ErrorKind::ResourceBusy => {
            bail!(
                "process {pid} has another request that it has not done yet; it will, when it makes a slow call of malloc or free"
            )
        }
        Err(error) => bail!(
            "cannot write to the statistics page of process {pid}: {error}; be its user, or root"
        ),
    };
    let end = Instant::now() + args.wait;
    while Instant::now() < end {
        match page.read() {
            Some(after) if after.request_done == number => return Ok(Some(after)),
            _ => thread::sleep(POLL),
        }
        if Stat::read(pid).is_none_or(|stat| stat.is_over()) {
            bail!("process {pid} has ended");
        }
    }
    out::warning(&format!(
        "process {pid} has no worker and makes no slow call of malloc or free now; it does this when it makes one"
    ));
    Ok(None)
}
