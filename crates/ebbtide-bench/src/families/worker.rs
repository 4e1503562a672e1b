//! The measured process: runs one case against the C library's allocation
//! functions, whichever library defines them here, and prints one line of JSON.
//!
//! Rust's `System` allocator, the default, calls the same functions, so a
//! preloaded library serves the whole process.

use std::ffi::CStr;
use std::mem;

use anyhow::{Context, Result};
use ebbtide_tools::out;

use super::FAMILIES;
use crate::measured::{Output, WorkerArgs, block};
use crate::outside::swap;

/// Runs one case and prints what came out.
pub fn main(args: &WorkerArgs) -> Result<u8> {
    if args.thp_off {
        block::disable_thp()?;
    }
    let mut output = match args.case.as_str() {
        "which" => Output::default(),
        "warm" => block::warm(args.amount, false)?,
        "warm_held" => block::warm(args.amount, true)?,
        "swap_keeper" => swap::keep(args.amount)?,
        case => {
            let mut families = FAMILIES.iter();
            let found = families.find_map(|family| (family.process)(args));
            found.with_context(|| {
                format!("unknown case '{case}'; families start this command themselves")
            })??
        }
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
