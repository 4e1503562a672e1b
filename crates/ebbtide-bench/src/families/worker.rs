//! The measured process: runs one case against the C library's allocation
//! functions, whichever library defines them here, and prints one line of JSON.
//!
//! Rust's `System` allocator, the default, calls the same functions, so a
//! preloaded library serves the whole process.

use std::ffi::CStr;
use std::mem;

use anyhow::{Context, Result, bail};
use ebbtide_tools::out;

use crate::cli::WorkerArgs;
use crate::families::cluster::pages;
use crate::families::exit::dying;
use crate::families::give_back::churn::churn;
use crate::families::give_back::victim;
use crate::families::lazyfree::search;
use crate::families::micro::operations::{BATCH, batch, fill, pair, rss, working_set};
use crate::families::neighbour::beside;
use crate::families::percpu;
use crate::families::percpu::counting;
use crate::families::percpu::groups;
use crate::families::reuse;
use crate::families::swap_exit::phone;
use crate::measured::Output;
use crate::measured::block::{self, Method};
use crate::measured::objects;
use crate::outside::swap;

/// Runs one case and prints what came out.
pub fn main(args: &WorkerArgs) -> Result<u8> {
    let n = args.amount;
    if args.thp_off {
        block::disable_thp()?;
    }
    let method = Method::named(&args.method)?;
    let mut output = match args.case.as_str() {
        "which" => Output::default(),
        "pair16" => pair(16, n),
        "pair64" => pair(64, n),
        "pair256" => pair(256, n),
        "lifo" => batch(n, |i| BATCH - 1 - i),
        "fifo" => batch(n, |i| i),
        "working_set" => working_set(n),
        "churn" => churn(n),
        "fill" => fill(n)?,
        "rss" => rss(),
        "warm" => block::warm(n, false)?,
        "warm_held" => block::warm(n, true)?,
        "block" => block::freed(n, method, false)?,
        "block_now" => block::freed(n, method, true)?,
        "temporaries" => block::temporaries(n)?,
        "victim_now" => victim::run(n, true)?,
        "victim_later" => victim::run(n, false)?,
        "app" => phone::app(n)?,
        "foreground" => phone::foreground(n, args.file.as_deref().context("--file is missing")?)?,
        "neighbour_first" => objects::scattered(n)?,
        "neighbour_second" => beside::second(n)?,
        "swap_keeper" => swap::keep(n)?,
        case if case.starts_with("search_") => search::run(case, n, args.searches_of_chunks)?,
        case if case.starts_with("searcher_") => search::searcher(case, n)?,
        case if case.starts_with("reuse_") => reuse::worker(case, n)?,
        case if case.starts_with("groups_") => groups::run(case, n)?,
        case if case.starts_with("count_") => counting::count(percpu::threads_of(case), n)?,
        case if case.starts_with("pairs_") => counting::pairs(percpu::threads_of(case), n)?,
        case if ["take_", "locks_", "hold_", "stall_"]
            .iter()
            .any(|p| case.starts_with(p)) =>
        {
            pages::run(case, n)?
        }
        case if case.starts_with("end_") => dying::run(case, n)?,
        case if case.ends_with("_random") || case.ends_with("_oldest") => {
            objects::thinned(case, n)?
        }
        other => bail!("unknown case '{other}'; 'ebbtide bench' starts this command itself"),
    };
    output.allocator = allocator();
    out::stdout((serde_json::to_string(&output)? + "\n").as_bytes());
    Ok(0)
}

/// The file that defines `malloc` here.
fn allocator() -> String {
    // SAFETY: dlsym and dladdr with valid arguments; `dli_fname`, if set, is a
    // NUL-terminated string that lives as long as the library.
    unsafe {
        let symbol = libc::dlsym(libc::RTLD_DEFAULT, c"malloc".as_ptr());
        let mut info: libc::Dl_info = mem::zeroed();
        if symbol.is_null() || libc::dladdr(symbol, &mut info) == 0 || info.dli_fname.is_null() {
            return String::new();
        }
        CStr::from_ptr(info.dli_fname)
            .to_string_lossy()
            .into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn allocator_is_named() {
        assert!(allocator().contains("libc"));
    }
}
