//! Checks which of the known-broken combinations (`known`) apply here: a pure function of the facts.

use std::env;
use std::fs::File;
use std::path::Path;

use ebbtide_tools::machine::are_pages_known;

use super::rseq::Owner;
use super::{Check, State};
use crate::{elf, library};
use ebbtide_interface::known::{self, Known, Refused};

/// The facts from which the checks are computed.
#[derive(Clone, Debug)]
pub struct Facts {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Major and minor number of the kernel.
    pub kernel: Option<(u32, u32)>,
    /// The system that answers in place of a Linux kernel.
    pub other_kernel: Option<&'static str>,
    /// The library that registered rseq, if any.
    pub rseq: Owner,
    /// Whether `membarrier` works for rseq.
    pub fences: bool,
    /// The release of a kernel that does not abort sections of this processor.
    pub unaborted: Option<String>,
    /// The user-mode emulator that this program runs under.
    pub emulator: Option<String>,
    /// The combination for which the library refused to start.
    pub refusal: Option<&'static Known>,
    /// An allocator that `LD_PRELOAD` names before Ebbtide.
    pub before: Option<String>,
}

/// The checks of all combinations.
pub fn all(facts: &Facts) -> Vec<Check> {
    let checks = known::ALL.iter().map(|known| check(known, facts));
    checks.collect()
}

fn check(known: &'static Known, facts: &Facts) -> Check {
    let (state, value) = match met(known, facts) {
        None if known.refused == Refused::ByRun => (
            State::Info,
            "by program: 'ebbtide run' refuses it".to_owned(),
        ),
        None => (State::Info, "by program".into()),
        Some(None) => (State::Ok, "not here".into()),
        Some(Some(detail)) if known.refused == Refused::No => (State::Limited, detail),
        Some(Some(detail)) => (State::Missing, detail),
    };
    let effect = format!("{}: {}; {}", known.what, known.happens, known.remedy);
    Check::new(state, known.id, value)
        .with_effect(effect)
        .with_remedy(known.remedy)
}

/// `None`: it depends on the program. `Some(None)`: it does not apply here. Otherwise the detail that was found.
fn met(known: &Known, facts: &Facts) -> Option<Option<String>> {
    let here = |is_here: bool, detail: &str| is_here.then(|| detail.to_owned());
    Some(match known.id {
        "pages" => here(
            !are_pages_known(facts.page_bytes),
            &format!("here: {} B", facts.page_bytes),
        ),
        "address_space" => here(facts.refusal.is_some_and(|r| r.id == known.id), "here"),
        "emulator" => facts.emulator.as_ref().map(|name| format!("here: {name}")),
        "no_rseq" => match &facts.rseq {
            Owner::Nobody(why) => Some(format!("here: {why}")),
            _ => None,
        },
        "other_rseq" => here(facts.rseq == Owner::Other, "here"),
        "no_fence" => here(!facts.fences, "here"),
        "unaborted" => facts.unaborted.as_ref().map(|r| format!("here: Linux {r}")),
        "old_kernel" => here(facts.kernel.is_none_or(|v| v < (5, 18)), "here"),
        "other_first" => facts.before.as_ref().map(|name| format!("here: {name}")),
        "other_kernel" => facts.other_kernel.map(|name| format!("here: {name}")),
        _ => return None,
    })
}

/// The first library that `LD_PRELOAD` names before Ebbtide and that defines `malloc`.
pub fn before_ebbtide() -> Option<String> {
    let list = env::var_os("LD_PRELOAD")?;
    let list = list.to_string_lossy().into_owned();
    let names: Vec<&str> = list.split([':', ' ']).filter(|n| !n.is_empty()).collect();
    let ours = names.iter().position(|path| library::is_ebbtide(path))?;
    let other = names[..ours].iter().find(|name| {
        let file = File::open(Path::new(name));
        file.is_ok_and(|file| elf::defines_malloc(&file))
    });
    other.map(|name| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fine() -> Facts {
        let (bytes, offset) = (32, -160);
        Facts {
            page_bytes: 4096,
            kernel: Some((6, 12)),
            other_kernel: None,
            rseq: Owner::Libc { bytes, offset },
            fences: true,
            unaborted: None,
            emulator: None,
            refusal: None,
            before: None,
        }
    }

    /// The ids of the combinations that doctor finds for these facts.
    fn found(facts: &Facts) -> Vec<&'static str> {
        let bad = |c: &Check| matches!(c.state, State::Limited | State::Missing);
        let checks = all(facts).into_iter().filter(bad);
        checks.map(|c| c.id).collect()
    }

    #[test]
    fn each_is_found_by_its_own_fact_and_by_no_other() {
        assert_eq!(found(&fine()), Vec::<&str>::new());
        type Change = (&'static str, fn(&mut Facts));
        let change: [Change; 10] = [
            ("pages", |f| f.page_bytes = 8 << 10),
            ("address_space", |f| f.refusal = Some(&known::ADDRESS_SPACE)),
            ("emulator", |f| f.emulator = Some("qemu-x86_64".into())),
            ("no_rseq", |f| f.rseq = Owner::Nobody("why".into())),
            ("other_rseq", |f| f.rseq = Owner::Other),
            ("no_fence", |f| f.fences = false),
            ("unaborted", |f| f.unaborted = Some("7.0.13".into())),
            ("old_kernel", |f| f.kernel = Some((5, 10))),
            ("other_first", |f| {
                f.before = Some("libjemalloc.so.2".into())
            }),
            ("other_kernel", |f| f.other_kernel = Some("gVisor")),
        ];
        for (id, break_it) in &change {
            let mut facts = fine();
            break_it(&mut facts);
            assert_eq!(found(&facts), [*id]);
        }
        // The others are properties of programs.
        for check in all(&fine()) {
            let by_machine = change.iter().any(|(id, _)| *id == check.id);
            let state = if by_machine { State::Ok } else { State::Info };
            assert_eq!(check.state, state, "{check:?}");
            assert!(!check.remedy.is_empty());
        }
    }
}
