//! A request to a process through its statistics page: its text, its number and its answer.

use std::io::ErrorKind;

use anyhow::{Result, bail};
use ebbtide_interface::keys;
use ebbtide_interface::page::{MAX_REQUEST_BYTES, RELEASE};
use ebbtide_tools::out;

use crate::top::find::OpenPage;

/// The request to release all free memory.
pub const RELEASE_TEXT: &str = match str::from_utf8(RELEASE) {
    Ok(text) => text,
    Err(_) => panic!("the request is ASCII"),
};
/// Whether a text is a request: a release, or a key with a value that the library knows.
pub fn check(text: &str) -> Result<()> {
    match keys::read(text.as_bytes()) {
        Err(problem) if text != RELEASE_TEXT => bail!("'{text}': {problem}"),
        _ => Ok(()),
    }
}

/// The result of a request in words.
pub fn answer(text: &str, result: u64) -> String {
    match result {
        bytes if text == RELEASE_TEXT => format!("≤ {} released", out::bytes(bytes)),
        0 => format!("{text} is set"),
        _ => format!(
            "'{text}' cannot change while the program runs; these can: retain_ms, limit. Set it in EBBTIDE_CONF and start the program again"
        ),
    }
}

/// Writes a request to the page of a process, and returns its number.
pub fn send(page: &OpenPage, pid: u32, text: &str) -> Result<u64> {
    if text.len() > MAX_REQUEST_BYTES {
        bail!("'{text}' is too long: at most {MAX_REQUEST_BYTES} bytes");
    }
    match page.request(text) {
        Ok(number) => Ok(number),
        Err(error) if error.kind() == ErrorKind::ResourceBusy => {
            bail!(
                "process {pid} has not done an earlier request yet; it will, when it makes a slow call of malloc or free"
            )
        }
        Err(error) => bail!(
            "cannot write to the statistics page of process {pid}: {error}; be its user, or root"
        ),
    }
}
