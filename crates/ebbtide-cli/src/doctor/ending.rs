//! Whether a large process can end beside whoever waits for it, and what happens where it cannot.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{self, Command};

use ebbtide_interface::FEATURES;
use ebbtide_tools::proc;

use super::{Check, admission, trial};

const INLINE: &str = "processes end as the kernel ends them: seen when their memory is back";
const LOOK: &str = "look for a seccomp filter and a tracer (Seccomp and TracerPid in /proc/self/status), and try it without them";

/// The first process namespace of a machine, `PROC_PID_INIT_INO`.
const MACHINES_OWN: &str = "pid:[4026531836]";

/// Longer than a helper takes to get ready; and where CPUs are busy.
const TRIAL_SECONDS: [&str; 2] = ["0.3", "2"];

/// Every check; the library, if it was found.
pub fn all(library: Option<&Path>) -> Vec<Check> {
    vec![
        helper(library),
        admission::check(),
        first_process(),
        service(),
    ]
}

/// A process with a helper, really made.
fn helper(library: Option<&Path>) -> Check {
    let Some(library) = library else {
        return Check::info("exit_helper", "not tried without the library");
    };
    let bit = FEATURES.iter().position(|&name| name == "reaper");
    let has = |mask: u64| bit.is_some_and(|bit| mask >> bit & 1 == 1);
    for seconds in TRIAL_SECONDS {
        let mut command = Command::new("sleep");
        command.arg(seconds);
        let page = match trial::watch(command, library, "exit=detached,exit_threshold=0") {
            Ok(Some(page)) => page,
            Ok(None) => return Check::info("exit_helper", "not tried: no statistics page"),
            Err(error) => return not_made(&format!("the trial failed: {error:#}"), LOOK),
        };
        if has(page.worked) {
            return Check::ok("exit_helper", "works", "takes memory back after the end");
        }
        if has(page.refused) {
            return Check::missing(
                "exit_helper",
                "refused",
                INLINE,
                "allow clone, close_range, pidfd_open, seccomp and unshare in the sandbox, and one process more",
            );
        }
    }
    why_not()
}

/// What keeps a program from asking for a helper holds here too.
fn why_not() -> Check {
    let mut word = 0usize;
    // SAFETY: `word` is a valid place to write to.
    if unsafe { libc::prctl(libc::PR_GET_TID_ADDRESS, &raw mut word) } != 0 {
        let error = io::Error::last_os_error();
        return not_made(
            &format!("PR_GET_TID_ADDRESS: {error}"),
            "a kernel with CONFIG_CHECKPOINT_RESTORE, and a sandbox that allows prctl",
        );
    }
    let link = |path: &str| fs::read_link(path).ok();
    if link("/proc/self") != Some(process::id().to_string().into()) {
        return not_made(
            "/proc is not this process namespace's",
            "mount the own /proc",
        );
    }
    if link("/proc/self/ns/pid") != link("/proc/self/ns/pid_for_children") {
        return not_made(
            "children are in another process namespace",
            "start programs in that one",
        );
    }
    not_made("not asked for, or not ready in time", LOOK)
}

fn not_made(why: &str, remedy: &str) -> Check {
    let value = format!("could not be made: {why}");
    Check::limited("exit_helper", value, INLINE, remedy)
}

/// The first process of a container ends with everybody.
fn first_process() -> Check {
    const ID: &str = "exit_first_process";
    if process::id() == 1 {
        return Check::limited(
            ID,
            "this is the first process here",
            "it never has a helper, as its end is everybody's",
            "start the container with an init of its own (docker run --init)",
        );
    }
    match fs::read_link("/proc/self/ns/pid") {
        Ok(name) if name == Path::new(MACHINES_OWN) => {
            Check::info(ID, "not in a container's process namespace")
        }
        Ok(_) => Check {
            effect: "its end is everybody's; with an init (docker run --init) programs are not the first".into(),
            ..Check::info(
                ID,
                "in a container: a program that is process 1 of this container has no helper",
            )
        },
        Err(error) => Check::info(ID, format!("not known: /proc/self/ns/pid: {error}")),
    }
}

/// A service's cgroup is waited for, or killed.
fn service() -> Check {
    let groups = proc::text("/proc/self/cgroup").unwrap_or_default();
    match service_of(&groups) {
        Some(unit) => Check::info(
            "exit_service",
            format!("{unit}: the end of a service waits for its whole cgroup, helpers too"),
        ),
        None => Check::info("exit_service", "in no service's cgroup"),
    }
}

/// The service whose groups these are. It may have others inside, and be a user's, whose programs have scopes of their own.
fn service_of(groups: &str) -> Option<&str> {
    let mut paths = groups.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.find_map(|path| {
        let mut names = path.rsplit('/');
        let unit = names.find(|name| name.ends_with(".service") || name.ends_with(".scope"));
        unit.filter(|unit| unit.ends_with(".service"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn services() {
        assert_eq!(
            service_of("0::/system.slice/x.service\n"),
            Some("x.service")
        );
        assert_eq!(service_of("0::/x.service/sub\n"), Some("x.service"));
        let hybrid = "4:memory:/\n1:name=systemd:/user@1.service/a.slice/b.service/init\n0::/\n";
        assert_eq!(service_of(hybrid), Some("b.service"));
        assert_eq!(service_of("0::/user.slice/x.scope\n0::/\n"), None);
        let desktop = "0::/user.slice/user-7.slice/user@7.service/app.slice/app-x.scope\n";
        assert_eq!(service_of(desktop), None);
        assert_eq!(service_of(""), None);
    }

    /// This one runs here, so nothing is known against it, but for what is told.
    #[test]
    fn reasons_name_what_to_look_at() {
        let check = why_not();
        assert!(!check.remedy.is_empty() && check.value.starts_with("could not be made: "));
    }
}
