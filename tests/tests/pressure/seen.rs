//! Which sources of pressure the manager says it sees, with some of them hidden.

use ebbtide_tests::{
    Cgroup, Run, c_program, command_line, ensure_installed, library, needs_root, only_ebbtide, skip,
};

use super::{MIB, PROMISE};

/// What the manager sees of memory, and says so, when `before` has been run in a mount namespace of its own.
fn sources_after(before: &str) -> Option<Vec<String>> {
    if !only_ebbtide(PROMISE) || !needs_root("a mount namespace") {
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
        c_program("pressure_events").display(),
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
