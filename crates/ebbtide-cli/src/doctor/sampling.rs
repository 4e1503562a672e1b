//! Checks whether profiles (`profile`) and guarded allocations (`guard`) work here, and whether they are on.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};
use ebbtide_interface::guard::SAMPLED;
use ebbtide_interface::profile::{AREA_BYTES, MAX_STACKS};
use ebbtide_interface::records::Owner;
use ebbtide_tools::stats_page::{self, StatsPage};
use ebbtide_tools::{conf, out};

use super::trial::{self, Watched};
use super::{Check, has_basic_syscalls};
use crate::profile::raw::{Raw, Unwinder};
use crate::top::find::{Found, Scope, search};

/// How the library starts its lines about guarded allocations.
const GUARD_LINE: &str = ": guard: ";

/// All checks. `library` is the library, if it was found, and `mode` how it works here.
pub fn all(library: Option<&Path>, mode: Option<&str>) -> Vec<Check> {
    let pages: Vec<StatsPage> = read(&search(&Scope::All).found);
    let mut checks = vec![profile(library), guard(library)];
    checks.push(counting(mode));
    checks.push(
        Check::info(
            "profile_memory",
            format!("at most {}", out::bytes(AREA_BYTES as u64)),
        )
        .with_effect(format!(
            "{} different stacks; samples of others are counted as dropped",
            out::count(MAX_STACKS as u64)
        )),
    );
    let slots: usize = SAMPLED.slots.iter().sum();
    checks.push(
        Check::info(
            "guard_memory",
            format!("at most {}", out::bytes(SAMPLED.live_bytes as u64)),
        )
        .with_effect(format!(
            "{} live objects; further ones are ordinary",
            out::count(slots as u64)
        )),
    );
    checks.push(is_on("profile_on", "profile", Owner::Profile, &pages));
    checks.push(is_on("guard_on", "guard", Owner::Guarded, &pages));
    checks
}

fn read(found: &[Found]) -> Vec<StatsPage> {
    let pages = found.iter().filter_map(|one| one.page.as_ref().ok());
    pages.filter_map(|page| page.read()).collect()
}

/// Runs `ebbtide --version` with a key, and with the limits of this environment.
fn try_with(library: &Path, conf: &str) -> Result<Watched> {
    let mut command = Command::new(env::current_exe().context("cannot find this program")?);
    command.arg("--version");
    let basic = if has_basic_syscalls() {
        "syscalls=basic,"
    } else {
        ""
    };
    trial::watch_saying(command, library, &format!("{basic}{conf}"))
}

/// Samples a process, and reads how its stacks were found.
fn profile(library: Option<&Path>) -> Check {
    const ID: &str = "profile";
    let Some(library) = library else {
        return Check::info(ID, "not tried without the library");
    };
    let profile = || -> Result<Raw> {
        let dir = stats_page::private_dir()?;
        let file = dir.path().join("profile");
        let watched = try_with(
            library,
            &format!("profile=1,profile_dump={}", file.display()),
        )?;
        let bytes = fs::read(&file).with_context(|| match &*watched.said {
            "" => "no profile was written".to_owned(),
            said => said.to_owned(),
        })?;
        Raw::parse_dump(&bytes).map_err(|bad| anyhow::anyhow!("a broken profile ({bad:?})"))
    };
    match profile() {
        Ok(raw) => of_unwinder(raw.unwinder(), raw.stacks.len()),
        Err(error) => Check::missing(ID, format!("{error:#}")),
    }
}

/// What a profile of so many stacks says.
fn of_unwinder(unwinder: Unwinder, stacks: usize) -> Check {
    const ID: &str = "profile";
    match unwinder {
        _ if stacks == 0 => Check::missing(ID, "no sample was taken"),
        Unwinder::Tables => Check::ok(ID, "works, stacks by unwind tables"),
        Unwinder::FramePointers => Check::limited(ID, "works, stacks by frame pointers"),
        Unwinder::None => Check::limited(ID, "works, only the caller of malloc is known")
            .with_remedy("allow process_vm_readv in the sandbox"),
    }
}

/// Guards the allocations of a process.
fn guard(library: Option<&Path>) -> Check {
    const ID: &str = "guard";
    let Some(library) = library else {
        return Check::info(ID, "not tried without the library");
    };
    match try_with(library, "guard=all") {
        Ok(watched) => of_guarded(&watched),
        Err(error) => Check::missing(ID, format!("{error:#}")),
    }
}

fn of_guarded(watched: &Watched) -> Check {
    const ID: &str = "guard";
    let said = watched.said.split_once(GUARD_LINE);
    let has_slots = |page: &StatsPage| page.mappings.contains(&Owner::Guarded);
    match (said, &watched.page) {
        (Some((_, said)), Some(page)) if has_slots(page) => Check::limited(ID, said),
        (Some((_, said)), _) => Check::missing(ID, said),
        (None, Some(page)) if has_slots(page) => Check::ok(ID, "works"),
        _ => Check::missing(ID, "the library made no slots"),
    }
}

/// How requests are counted, which decides what both cost.
fn counting(mode: Option<&str>) -> Check {
    const ID: &str = "counting";
    match mode {
        Some("rseq") => Check::info(ID, "by restartable sequences")
            .with_effect("malloc stays on its fast path, and free is the same"),
        Some(_) => Check::info(ID, "by atomic instructions")
            .with_effect("requests are slow here anyway: the portable mode has locks"),
        None => Check::info(ID, "not known without the library"),
    }
}

/// Whether a key is set in this environment, and how many processes have it.
fn is_on(id: &'static str, key: &str, of: Owner, pages: &[StatsPage]) -> Check {
    let here = match conf::merged(&[]) {
        Ok(conf) => conf.get(key).unwrap_or("off").to_owned(),
        Err(error) => format!("unknown: {error:#}"),
    };
    let count = pages
        .iter()
        .filter(|page| page.mappings.contains(&of))
        .count();
    let value = format!(
        "{key}={here} in this environment; {} of {} processes that show figures",
        out::count(count as u64),
        out::count(pages.len() as u64)
    );
    let how = match of {
        Owner::Profile => "EBBTIDE_CONF=profile=512K, or 'ebbtide profile PID' for a while",
        _ => "EBBTIDE_CONF=guard=on, when a program starts",
    };
    Check::info(id, value).with_effect(how)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::State;

    #[test]
    fn stacks_are_as_the_profile_says() {
        let state = |unwinder, stacks| of_unwinder(unwinder, stacks).state;
        assert_eq!(state(Unwinder::Tables, 3), State::Ok);
        assert_eq!(state(Unwinder::Tables, 0), State::Missing);
        assert_eq!(state(Unwinder::FramePointers, 3), State::Limited);
        let caller = of_unwinder(Unwinder::None, 3);
        assert!(caller.remedy.contains("process_vm_readv"), "{caller:?}");
    }

    #[test]
    fn guards_are_as_the_process_says() {
        let state = |said: &str, mappings| {
            let page = StatsPage {
                mappings,
                ..StatsPage::default()
            };
            let watched = Watched {
                page: Some(page),
                said: said.into(),
            };
            let check = of_guarded(&watched);
            let bad = matches!(check.state, State::Missing | State::Limited);
            assert_eq!(bad, !check.remedy.is_empty(), "{check:?}");
            check.state
        };
        let line = "ebbtide: x[1]: guard: no handler of SIGSEGV is possible";
        let slots = || vec![Owner::Heap, Owner::Guarded];
        assert_eq!(state("", slots()), State::Ok);
        assert_eq!(state(line, slots()), State::Limited);
        assert_eq!(state(line, vec![Owner::Heap]), State::Missing);
        assert_eq!(state("", vec![]), State::Missing);
    }

    #[test]
    fn processes_that_have_it_are_counted() {
        let pages = [vec![Owner::Profile], vec![Owner::Heap]].map(|mappings| StatsPage {
            mappings,
            ..StatsPage::default()
        });
        let value = is_on("profile_on", "profile", Owner::Profile, &pages).value;
        assert!(
            value.ends_with("1 of 2 processes that show figures"),
            "{value}"
        );
    }
}
