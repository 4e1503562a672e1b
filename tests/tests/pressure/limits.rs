//! A process near the limit of its group, and the owner's limit (`limit=`): `c/near_limit.c`.

use ebbtide_tests::only_ebbtide;

use super::{MIB, PROMISE, in_group, ok_in_group, run};

const PROGRAM: &str = "near_limit";

#[test]
fn garbage_in_spans_goes_before_the_limit() {
    ok_in_group(256 * MIB, PROGRAM, "grow", "retain_ms=60000");
    // The control: the same without is killed.
    let conf = "retain_ms=60000,pressure=off";
    if let Some(outcome) = in_group(256 * MIB, PROGRAM, "grow", conf) {
        assert!(outcome.killed_by(9), "{}", outcome.describe("lives"));
    }
}

#[test]
fn free_blocks_go_before_the_limit() {
    ok_in_group(256 * MIB, PROGRAM, "blocks", "pressure=on");
}

#[test]
fn calls_of_a_child_with_its_parents_huge_pages_are_short() {
    for mode in ["fork", "reclone"] {
        ok_in_group(256 * MIB, PROGRAM, mode, "pressure=on");
    }
}

#[test]
fn the_owners_limit() {
    if !only_ebbtide(PROMISE) {
        return;
    }
    for conf in [
        "limit=16m",
        "limit=16m,workers=0",
        "limit=16m,pressure=off",
        "limit=16m,rseq=off",
        "limit=0%",
    ] {
        run(PROGRAM, "limit 16", &format!("{conf},retain_ms=60000")).ok();
    }
    run(PROGRAM, "limit 16", "pressure=off,retain_ms=60000").must_fail("obeys");
}
