//! `ebbtide release` and `ebbtide set`: ask a running process through its statistics page.
//!
//! The page belongs to the process's user, so only that user and root can ask. No signal is sent. A worker of the process answers within
//! 0.5 s. Without a worker, its next slow call of `malloc` or `free` does.

use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use ebbtide_tools::out;
use ebbtide_tools::proc::Stat;
use ebbtide_tools::stats_page::StatsPage;

use crate::cli::{ReleaseArgs, SetArgs};
use crate::top::find::{self, Scope};
use crate::top::request::{RELEASE_TEXT, answer, check, send};

/// The exit status if the process did not answer in time: the request stays.
const LATER: u8 = 75;
const POLL: Duration = Duration::from_millis(5);

/// Lets the process release all free memory.
pub fn release(args: &ReleaseArgs) -> Result<u8> {
    let Some(after) = ask(args, RELEASE_TEXT)? else {
        return Ok(LATER);
    };
    let told = answer(RELEASE_TEXT, after.request_result);
    out::stdout(format!("{told}\n").as_bytes());
    Ok(0)
}

/// Changes a key.
pub fn set(args: &SetArgs) -> Result<u8> {
    check(&args.item)?;
    match ask(&args.request, &args.item)? {
        Some(after) if after.request_result == 0 => Ok(0),
        Some(after) => bail!("{}", answer(&args.item, after.request_result)),
        None => Ok(LATER),
    }
}

/// Writes the request and waits for the answer: the figures after it. `None`: there was none in time.
pub fn ask(args: &ReleaseArgs, text: &str) -> Result<Option<StatsPage>> {
    let pid = args.pid;
    let found = find::search(&Scope::Pids(vec![pid])).found.pop();
    let page = match found.map(|found| found.page) {
        Some(Ok(page)) => page,
        Some(Err(why)) => bail!("{}", why.sentence(pid)),
        None => bail!("{}", find::absent(pid)),
    };
    // Kept open until the answer: other observers wait.
    let (number, _file) = send(&page, pid, text)?;
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
