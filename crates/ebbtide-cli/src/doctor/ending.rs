//! Whether a large process can end beside whoever waits for it, and what happens where it cannot.

use std::env;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{self, Command};

use super::{Check, trial};
use crate::proc;
use crate::stats_page::FEATURES;

const INLINE: &str = "processes end as the kernel ends them: seen when their memory is back";

/// Every check; the library, if it was found.
pub fn all(library: Option<&Path>) -> Vec<Check> {
    vec![helper(library), turns(), first_process(), service()]
}

/// A process with a helper, really made.
fn helper(library: Option<&Path>) -> Check {
    let Some(library) = library else {
        return Check::info("exit_helper", "not tried without the library");
    };
    let mut command = Command::new("sleep");
    // Longer than a helper takes to get ready.
    command.arg("0.3");
    let page = match trial::watch(command, library, "exit=detached,exit_threshold=0") {
        Ok(Some(page)) => page,
        Ok(None) => return Check::info("exit_helper", "not tried: no statistics page"),
        Err(error) => return Check::info("exit_helper", format!("not tried: {error:#}")),
    };
    let bit = FEATURES.iter().position(|&name| name == "reaper");
    let has = |mask: u64| bit.is_some_and(|bit| mask >> bit & 1 == 1);
    if has(page.worked) {
        Check::ok("exit_helper", "works", "takes memory back after the end")
    } else if has(page.refused) {
        Check::missing(
            "exit_helper",
            "refused",
            INLINE,
            "allow clone, close_range, pidfd_open, seccomp and unshare in the sandbox, and one process more",
        )
    } else {
        Check::info(
            "exit_helper",
            "not made: first process of a container, or PR_GET_TID_ADDRESS is missing",
        )
    }
}

/// Where helpers of this user take turns.
fn turns() -> Check {
    // SAFETY: a plain call.
    let user = unsafe { libc::geteuid() };
    let private = |path: &str| {
        fs::metadata(path)
            .is_ok_and(|about| about.is_dir() && about.uid() == user && about.mode() & 0o022 == 0)
    };
    let given = env::var("XDG_RUNTIME_DIR").unwrap_or_default();
    let usual = [given, format!("/run/user/{user}")];
    if let Some(found) = usual.iter().find(|path| private(path)) {
        return Check::ok(
            "exit_turns",
            found.as_str(),
            "few helpers at a time while memory is not short",
        );
    }
    for base in ["/dev/shm", "/tmp"] {
        let own = format!("{base}/ebbtide-{user}");
        if private(&own) || !Path::new(&own).exists() && is_writable(base) {
            return Check::ok(
                "exit_turns",
                own,
                "few helpers at a time while memory is not short",
            );
        }
    }
    Check::limited(
        "exit_turns",
        "no private directory",
        "helpers take no turns: all of them work at once",
        "set XDG_RUNTIME_DIR to a directory of mode 700 that is yours",
    )
}

fn is_writable(path: &str) -> bool {
    let path = std::ffi::CString::new(path).unwrap_or_default();
    // SAFETY: the path ends with a NUL.
    unsafe { libc::access(path.as_ptr(), libc::W_OK) == 0 }
}

/// The first process of a container ends with everybody.
fn first_process() -> Check {
    if process::id() == 1 {
        return Check::limited(
            "exit_first_process",
            "this is the first process here",
            "it never has a helper, as its end is everybody's",
            "start the container with an init of its own (docker run --init)",
        );
    }
    Check::info("exit_first_process", "not the first process here")
}

/// A service's cgroup is waited for, or killed.
fn service() -> Check {
    let groups = proc::text("/proc/self/cgroup").unwrap_or_default();
    let unit = groups
        .lines()
        .filter_map(|line| line.rsplit('/').next())
        .find(|name| name.ends_with(".service"));
    match unit {
        Some(unit) => Check::info(
            "exit_service",
            format!("{unit}: the end of a service waits for its whole cgroup, helpers too"),
        ),
        None => Check::info("exit_service", "in no service's cgroup"),
    }
}
