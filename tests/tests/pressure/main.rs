//! Memory that is short: limits, events, the owner's limit. `c/pressure.c` works inside them.

mod sources;

use ebbtide_tests::{
    Cgroup, Outcome, Run, c_program, command_line, ensure_installed, is_ebbtide, is_root, library,
    skip,
};

const MIB: u64 = 1 << 20;

fn pressure(mode: &str, conf: &str) -> Run {
    Run::new(c_program("pressure")).args(mode).conf(conf)
}

/// Runs it in a group of 256 MiB.
fn in_group(mode: &str, conf: &str) -> Option<Outcome> {
    in_group_of(256 * MIB, mode, conf)
}

/// Runs it in a group with this limit, whose directory it is told.
fn in_group_of(bytes: u64, mode: &str, conf: &str) -> Option<Outcome> {
    if !is_ebbtide() {
        skip("only Ebbtide promises this");
        return None;
    }
    if !is_root() {
        skip("a memory cgroup needs root");
        return None;
    }
    let name = format!("{mode}-{conf}").replace(['=', ',', ' ', '/'], "-");
    match Cgroup::with_memory_max(&name, bytes) {
        Err(why) => {
            skip(&why);
            None
        }
        Ok(group) => {
            let run = pressure(mode, conf).env("GROUP", group.dir());
            Some(run.cgroup(&group).run())
        }
    }
}

#[test]
fn garbage_in_spans_goes_before_the_limit() {
    if let Some(outcome) = in_group("grow", "retain_ms=60000") {
        outcome.ok();
    }
    // The control: the same without is killed.
    if let Some(outcome) = in_group("grow", "retain_ms=60000,pressure=off") {
        assert!(outcome.killed_by(9), "{}", outcome.describe("lives"));
    }
}

#[test]
fn free_blocks_go_before_the_limit() {
    if let Some(outcome) = in_group("blocks", "pressure=on") {
        outcome.ok();
    }
}

#[test]
fn calls_of_a_child_with_its_parents_huge_pages_are_short() {
    for mode in ["fork", "reclone"] {
        if let Some(outcome) = in_group(mode, "pressure=on") {
            outcome.ok();
        }
    }
}

/// "some 150000 2000000".
const TRIGGER: &str = "c29tZSAxNTAwMDAgMjAwMDAwMA==";

fn told_by_a_fifo(mode: &str, conf: &str) -> Option<Outcome> {
    if !is_ebbtide() {
        skip("only Ebbtide promises this");
        return None;
    }
    let dir = tempfile::tempdir().expect("temporary directory");
    let fifo = dir.path().join("fifo");
    let name = std::ffi::CString::new(fifo.to_str().expect("path")).expect("path");
    // SAFETY: a NUL-ended path.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let run = pressure(mode, conf)
        .env("MEMORY_PRESSURE_WATCH", &fifo)
        .env("MEMORY_PRESSURE_WRITE", TRIGGER);
    Some(run.run())
}

#[test]
fn an_event_empties_what_is_kept() {
    for mode in ["watch", "overwritten"] {
        if let Some(outcome) = told_by_a_fifo(mode, "retain_ms=60000") {
            outcome.ok();
        }
    }
    if let Some(outcome) = told_by_a_fifo("stay", "retain_ms=60000") {
        outcome.ok();
    }
    // The control: nobody listens.
    if let Some(outcome) = told_by_a_fifo("watch", "retain_ms=60000,pressure=off") {
        assert!(!outcome.status.success(), "{}", outcome.describe("obeys"));
    }
}

#[test]
fn events_that_are_not_wanted() {
    if !is_ebbtide() {
        return skip("only Ebbtide promises this");
    }
    for path in ["/dev/null", "/no/such/file", "/etc/passwd"] {
        pressure("stay", "retain_ms=60000")
            .env("MEMORY_PRESSURE_WATCH", path)
            .ok();
    }
}

#[test]
fn the_owners_limit() {
    if !is_ebbtide() {
        return skip("only Ebbtide promises this");
    }
    for conf in [
        "limit=16m",
        "limit=16m,workers=0",
        "limit=16m,pressure=off",
        "limit=16m,rseq=off",
        "limit=0%",
    ] {
        pressure("limit 16", &format!("{conf},retain_ms=60000")).ok();
    }
    let without = pressure("limit 16", "pressure=off,retain_ms=60000").run();
    assert!(!without.status.success(), "{}", without.describe("obeys"));
}

#[test]
fn nobody_watches_when_there_is_nothing_to_give() {
    if !is_ebbtide() {
        return skip("only Ebbtide promises this");
    }
    pressure("idle", "pressure=on").ok();
}

#[test]
fn nobody_stays_after_an_event() {
    if let Some(outcome) = told_by_a_fifo("gone", "retain_ms=60000") {
        outcome.ok();
    }
}

/// A program that does nothing has 150 MiB to give, and another one needs all but a tenth of the limit.
#[test]
fn another_process_gets_what_is_free() {
    let mode = "beside 150 460";
    if let Some(outcome) = in_group_of(512 * MIB, mode, "retain_ms=60000") {
        outcome.ok();
    }
    // The control: one of the two is killed.
    if let Some(outcome) = in_group_of(512 * MIB, mode, "retain_ms=60000,pressure=off") {
        assert!(!outcome.status.success(), "{}", outcome.describe("lives"));
    }
}

/// Pages of files fill the group: the kernel reclaims from it and says so, far from where anybody is killed.
#[test]
fn a_group_that_is_reclaimed_from() {
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    file.as_file()
        .set_len(700 * MIB)
        .expect("a file with holes");
    let mode = format!("cache 64 {}", file.path().display());
    if let Some(outcome) = in_group_of(512 * MIB, &mode, "retain_ms=60000") {
        outcome.ok();
    }
}

/// Version 1 tells of that in two ways; without the count of hits, the event alone.
#[test]
fn a_pressure_level_alone() {
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    file.as_file()
        .set_len(700 * MIB)
        .expect("a file with holes");
    let group = match Cgroup::with_memory_max("level", 512 * MIB) {
        Ok(group) if is_ebbtide() && group.file("memory.pressure_level").exists() => group,
        _ => return skip("no memory cgroup of version 1"),
    };
    if !ensure_installed("unshare", "util-linux") {
        return skip("no unshare");
    }
    let run = |conf: &str| {
        let script = "mount --bind /dev/null $GROUP/memory.failcnt; exec \"$@\"";
        Run::new("unshare")
            .args("-m sh -ec")
            .arg(script)
            .arg("sh")
            .arg(c_program("pressure"))
            .args("level 64")
            .arg(file.path())
            .conf(&format!("retain_ms=60000{conf}"))
            .env("GROUP", group.dir())
            .cgroup(&group)
            .run()
    };
    run("").ok();
    let control = run(",pressure=off");
    assert!(!control.status.success(), "{}", control.describe("hears"));
}

/// The limit changes while the program runs and does nothing.
#[test]
fn a_limit_that_is_lowered_and_raised() {
    if let Some(outcome) = in_group_of(512 * MIB, "lowered 64", "retain_ms=60000") {
        outcome.ok();
    }
    let control = in_group_of(512 * MIB, "lowered 64", "retain_ms=60000,pressure=off");
    if let Some(outcome) = control {
        assert!(!outcome.status.success(), "{}", outcome.describe("follows"));
    }
}

/// Lazy and dirty memory share one bound.
#[test]
fn lazy_and_dirty_memory_together_stay_below_half_of_what_is_left() {
    let conf = "retain_ms=6000,dev=lazy_ms:60000,lazyfree=always";
    if let Some(outcome) = in_group_of(1024 * MIB, "both 64", conf) {
        outcome.ok();
    }
}

#[test]
fn a_limit_where_there_was_none() {
    if let Some(outcome) = in_group_of(1 << 62, "appears 64", "retain_ms=60000") {
        outcome.ok();
    }
}

/// What the manager sees of memory, and says so, when `before` has been run in a mount namespace of its own.
fn sources_after(before: &str) -> Option<Vec<String>> {
    if !is_ebbtide() {
        skip("only Ebbtide looks");
        return None;
    }
    if !is_root() {
        skip("a mount namespace needs root");
        return None;
    }
    let (cli, tools) = (command_line()?, ensure_installed("unshare", "util-linux"));
    let dir = tempfile::tempdir().expect("temporary directory");
    let group = Cgroup::with_memory_max(&format!("sources-{}", before.len()), 512 * MIB);
    let (Ok(group), true) = (group, tools) else {
        skip("no memory cgroup");
        return None;
    };
    let summary = dir.path().join("summary");
    std::fs::write(&summary, "").expect("summary");
    for path in [dir.path(), &summary] {
        let all = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(path, all).expect("permissions");
    }
    let script = format!(
        "{before} exec \"$@\" {} run --lib {} --conf retain_ms=60000 --summary=json --summary-file {} -- {} end",
        cli.display(),
        library()?.display(),
        summary.display(),
        c_program("pressure").display(),
    );
    let outcome = Run::new("unshare")
        .plain()
        .args("-m sh -ec")
        .arg(script)
        .env("HOME", dir.path())
        .cgroup(&group)
        .run();
    outcome.ok();
    let said = std::fs::read_to_string(&summary).expect("summary");
    let list = said
        .split_once("\"pressure_sources\":[")
        .expect("sources")
        .1;
    let list = list.split_once(']').expect("a list").0;
    let names = list.split(',').filter(|name| !name.is_empty());
    Some(
        names
            .map(|name| name.trim_matches('"').to_owned())
            .collect(),
    )
}

/// Whatever is missing, the program works, what is left is watched, and `ebbtide run --summary` names it.
#[test]
fn what_cannot_be_seen_is_not_there() {
    let Some(all) = sources_after("") else {
        return;
    };
    assert!(all[0] == "machine" && all[1] == "cgroup limit", "{all:?}");
    let without =
        |name: &str| -> Vec<String> { all.iter().filter(|one| *one != name).cloned().collect() };
    if all.iter().any(|name| name == "PSI") {
        let hidden = sources_after("mount -t tmpfs none /proc/pressure;");
        assert_eq!(hidden, Some(without("PSI")));
        // Nobody may read it, nor write to the group's files.
        let closed = "umask 777; : > $HOME/closed; umask 022; \
            mount --bind $HOME/closed /proc/pressure/memory; \
            set -- setpriv --reuid=65534 --clear-groups;";
        let allowed = all[..2].to_vec();
        assert_eq!(sources_after(closed), Some(allowed));
    }
    let no_group = "mount -t tmpfs none /sys/fs/cgroup;";
    let left = sources_after(no_group).expect("as before");
    assert!(left[0] == "machine" && !left.contains(&all[1]), "{left:?}");
    let nothing = format!(
        "{no_group} mount --bind /dev/null /proc/meminfo; \
         for file in /proc/pressure/memory; do mount --bind /dev/null $file || :; done;"
    );
    assert_eq!(sources_after(&nothing), Some(vec![]));
}

/// In a namespace of cgroups the own group looks like the root; its PSI is its own.
#[test]
fn a_group_that_looks_like_the_root() {
    let Ok(group) = Cgroup::unified("looks-like-root") else {
        return skip("no cgroup of version 2");
    };
    if group.read("memory.pressure").is_none() {
        return skip("the group has no PSI");
    }
    let mount = group.dir().parent().expect("a mount point").display();
    let before = format!(
        "echo 0 > {}/cgroup.procs; mount -t tmpfs none /proc/pressure; \
         set -- unshare -C sh -ec 'umount {mount}; mount -t cgroup2 none {mount}; exec \"$@\"' sh;",
        group.dir().display(),
    );
    if let Some(sources) = sources_after(&before) {
        assert!(sources.iter().any(|name| name == "PSI"), "{sources:?}");
    }
}
