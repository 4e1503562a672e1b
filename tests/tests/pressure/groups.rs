//! Limits of a group that change, and other processes in it: `c/pressure_group.c`.

use ebbtide_tests::{Cgroup, Run, c_program, ensure_installed, is_ebbtide, skip};

use super::{MIB, fails_in_group, ok_in_group};

const PROGRAM: &str = "pressure_group";

/// A file of 700 MiB without content.
fn large_file() -> tempfile::NamedTempFile {
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    let set = file.as_file().set_len(700 * MIB);
    set.expect("a file with holes");
    file
}

/// A program that does nothing has 150 MiB to give, and another one needs all but a tenth of the limit.
#[test]
fn another_process_gets_what_is_free() {
    let mode = "beside 150 460";
    ok_in_group(512 * MIB, PROGRAM, mode, "retain_ms=60000");
    // The control: one of the two is killed.
    let conf = "retain_ms=60000,pressure=off";
    fails_in_group(512 * MIB, PROGRAM, mode, conf);
}

/// Pages of files fill the group: the kernel reclaims from it and says so, far from where anybody is killed.
#[test]
fn a_group_that_is_reclaimed_from() {
    let file = large_file();
    let mode = format!("cache 64 {}", file.path().display());
    ok_in_group(512 * MIB, PROGRAM, &mode, "retain_ms=60000");
}

/// Version 1 tells of that in two ways; without the count of hits, the event alone.
#[test]
fn a_pressure_level_alone() {
    let file = large_file();
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
            .arg(c_program(PROGRAM))
            .args("level 64")
            .arg(file.path())
            .conf(&format!("retain_ms=60000{conf}"))
            .env("GROUP", group.dir())
            .cgroup(&group)
    };
    run("").ok();
    run(",pressure=off").must_fail("hears");
}

/// The limit changes while the program runs and does nothing.
#[test]
fn a_limit_that_is_lowered_and_raised() {
    ok_in_group(512 * MIB, PROGRAM, "lowered 64", "retain_ms=60000");
    let conf = "retain_ms=60000,pressure=off";
    fails_in_group(512 * MIB, PROGRAM, "lowered 64", conf);
}

/// Lazy and dirty memory share one bound.
#[test]
fn lazy_and_dirty_memory_together_stay_below_half_of_what_is_left() {
    let conf = "retain_ms=6000,dev=lazy_ms:60000,lazyfree=always";
    ok_in_group(1024 * MIB, PROGRAM, "both 64", conf);
}

#[test]
fn a_limit_where_there_was_none() {
    ok_in_group(1 << 62, PROGRAM, "appears 64", "retain_ms=60000");
}
