//! Checks whether `exit=detached` works here: a helper returns a large process's memory after the process's end.

use std::fs;
use std::io;
use std::path::Path;
use std::process::{self, Command};

use ebbtide_interface::FEATURES;
use ebbtide_tools::proc;
use ebbtide_tools::stats_page::named;

use super::{Check, admission, trial};

/// The first process namespace of a machine, `PROC_PID_INIT_INO`.
const MACHINES_OWN: &str = "pid:[4026531836]";

/// Run times of the trial, longer than a helper needs to get ready. The second one is for busy CPUs.
const TRIAL_SECONDS: [&str; 2] = ["0.3", "2"];

/// All checks. `library` is the library, if it was found.
pub fn all(library: Option<&Path>) -> Vec<Check> {
    vec![
        helper(library),
        admission::check(),
        first_process(),
        service(),
    ]
}

/// Runs a process that should get a helper, and reports whether it did.
fn helper(library: Option<&Path>) -> Check {
    let Some(library) = library else {
        return Check::info("exit_helper", "not tried without the library");
    };
    let has = |mask| named(mask, &FEATURES).contains(&"reaper");
    for seconds in TRIAL_SECONDS {
        let mut command = Command::new("sleep");
        command.arg(seconds);
        let page = match trial::watch(command, library, "exit=detached,exit_threshold=0") {
            Ok(Some(page)) => page,
            Ok(None) => return Check::info("exit_helper", "not tried: no statistics page"),
            Err(error) => return not_made(&format!("the trial failed: {error:#}")),
        };
        if has(page.worked) {
            return Check::ok("exit_helper", "works");
        }
        if has(page.refused) {
            return Check::missing("exit_helper", "refused");
        }
    }
    why_not()
}

/// Finds the reason why there was no helper. The conditions that stop a program hold for this process too.
fn why_not() -> Check {
    let mut word = 0usize;
    // SAFETY: `word` is a valid place to write to.
    if unsafe { libc::prctl(libc::PR_GET_TID_ADDRESS, &raw mut word) } != 0 {
        let error = io::Error::last_os_error();
        return not_made(&format!("PR_GET_TID_ADDRESS: {error}")).with_remedy(
            "use a kernel with CONFIG_CHECKPOINT_RESTORE, and allow prctl in the sandbox",
        );
    }
    let link = |path: &str| fs::read_link(path).ok();
    if link("/proc/self") != Some(process::id().to_string().into()) {
        return not_made("/proc belongs to another process namespace")
            .with_remedy("mount /proc for this process namespace");
    }
    if link("/proc/self/ns/pid") != link("/proc/self/ns/pid_for_children") {
        return not_made("children are in another process namespace")
            .with_remedy("start programs in that namespace");
    }
    not_made("the library asked for none, or it was not ready in time")
}

fn not_made(why: &str) -> Check {
    Check::limited("exit_helper", format!("could not be made: {why}"))
}

/// Checks for process 1 of a container: its end ends all other processes of the container.
fn first_process() -> Check {
    const ID: &str = "exit_first_process";
    if process::id() == 1 {
        return Check::limited(ID, "this is the first process here");
    }
    match fs::read_link("/proc/self/ns/pid") {
        Ok(name) if name == Path::new(MACHINES_OWN) => {
            Check::info(ID, "not in a container's process namespace")
        }
        Ok(_) => {
            let value =
                "in a container: a program that is process 1 of this container has no helper";
            Check::info(ID, value).with_effect(
                "the end of process 1 ends the container; \
                 with an init (docker run --init) programs are not process 1",
            )
        }
        Err(error) => Check::info(ID, format!("not known: /proc/self/ns/pid: {error}")),
    }
}

/// Checks for a systemd service: its end waits for all processes of its cgroup, or kills them.
fn service() -> Check {
    let groups = proc::text("/proc/self/cgroup").unwrap_or_default();
    match service_of(&groups) {
        Some(unit) => Check::info(
            "exit_service",
            format!(
                "{unit}: the end of a service waits for all processes of its cgroup, including helpers"
            ),
        ),
        None => Check::info("exit_service", "not in a service's cgroup"),
    }
}

/// The service that owns these cgroups. A service may have other groups inside. It may also be a user's service
/// manager, whose programs have scopes of their own.
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

    /// This process runs here, so no reason is found, except the general one.
    #[test]
    fn reasons_name_what_to_look_at() {
        let check = why_not();
        assert!(!check.remedy.is_empty() && check.value.starts_with("could not be made: "));
    }
}
