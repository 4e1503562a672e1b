//! The processes that run under Ebbtide now: how many show figures, and why the others do not.

use crate::top::find::{Found, Scope, Why, YOUNG, search};

use super::Check;

/// The lines of the report.
pub fn all() -> Vec<Check> {
    let found = search(&Scope::All).found;
    let count = found.iter().filter(|one| one.page.is_ok()).count();
    let with = Check::info("with_figures", count.to_string());
    let mut checks = vec![with.with_effect("processes that 'ebbtide top' shows")];
    for (id, why, effect) in [
        ("young", Why::Young, format!("told stats_dir; {YOUNG}")),
        ("forked", Why::Forked, "they get figures of their own when they allocate more".into()),
        ("not_told", Why::NotTold, "they run under Ebbtide; with EBBTIDE_CONF=stats_dir=/DIRECTORY they would show figures".into()),
    ] {
        let names = names(&found, why);
        if !names.is_empty() {
            checks.push(Check::info(id, names).with_effect(effect));
        }
    }
    checks
}

/// The processes without figures for this reason; the first five by name.
fn names(found: &[Found], why: Why) -> String {
    const NAMED: usize = 5;
    let is_it = |one: &&Found| one.page.as_ref().err() == Some(&why);
    let of: Vec<&Found> = found.iter().filter(is_it).collect();
    let names = of.iter().take(NAMED);
    let names = names.map(|one| format!("{} {}", one.pid, one.stat.name));
    let more = of.len().saturating_sub(NAMED);
    let more = (more > 0).then(|| format!("and {more} more"));
    names.chain(more).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use ebbtide_tools::proc::Stat;

    #[test]
    fn processes_have_their_reason() {
        let stat = Stat::read(std::process::id()).unwrap();
        let found = |pid, why| Found {
            pid,
            stat: Stat {
                name: "x".into(),
                ..stat.clone()
            },
            page: Err(why),
        };
        let mut all = vec![found(7, Why::Young), found(8, Why::NotTold)];
        assert_eq!(names(&all, Why::Young), "7 x");
        assert_eq!(names(&all, Why::Forked), "");
        all.extend((10..16).map(|pid| found(pid, Why::NotTold)));
        assert_eq!(
            names(&all, Why::NotTold),
            "8 x, 10 x, 11 x, 12 x, 13 x, and 2 more"
        );
        assert_eq!(super::all()[0].id, "with_figures");
    }
}
