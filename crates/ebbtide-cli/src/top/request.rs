//! A request to a process through its statistics page: its text, its number and its answer.

use std::fs::File;
use std::io::ErrorKind;

use anyhow::{Result, bail};
use ebbtide_interface::page::{MAX_REQUEST_BYTES, RELEASE};
use ebbtide_interface::{FEATURES, keys};
use ebbtide_tools::out;

use crate::top::find::OpenPage;

/// The call by which a process reads a request.
const COPY: &str = "process_vm_writev";
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
        1 => format!("the process does not know '{text}': its library has another version"),
        3 => format!("the process could not do '{text}'; a line on its stderr says why"),
        _ => format!(
            "'{text}' cannot change while the program runs; these can: retain_ms, limit, profile, profile_dump. Set it in EBBTIDE_CONF and start the program again"
        ),
    }
}

/// Writes a request to the page of a process. Returns its number, and a file: while that is open, other observers are refused.
pub fn send(page: &OpenPage, pid: u32, text: &str) -> Result<(u64, File)> {
    if text.len() > MAX_REQUEST_BYTES {
        bail!("'{text}' is too long: at most {MAX_REQUEST_BYTES} bytes");
    }
    let refused = page.read().map_or(0, |page| page.refused);
    let mut features = FEATURES.iter().enumerate();
    if features.any(|(bit, &name)| name == COPY && refused >> bit & 1 == 1) {
        bail!(
            "process {pid} cannot read requests: {COPY} is refused to it, by a filter or by syscalls=basic; it can call ebb_release and ebb_set itself"
        );
    }
    match page.request(text) {
        Ok(request) => Ok(request),
        Err(error) if error.kind() == ErrorKind::ResourceBusy => {
            bail!(
                "process {pid} has another request that it has not done yet; it will, when it makes a slow call of malloc or free"
            )
        }
        Err(error) => bail!(
            "cannot write to the statistics page of process {pid}: {error}; be its user, or root"
        ),
    }
}
