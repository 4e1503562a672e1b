//! Lock figures, zones by lock domain, and frame by frame: what a process shows of them.

use ebbtide_tests::{Run, c_program, only_ebbtide};

fn locks(arg: &str) -> Run {
    Run::new(c_program("locks")).args(arg)
}

#[test]
fn lock_figures_are_kept_when_asked_for() {
    if !only_ebbtide("counts locks") {
        return;
    }
    for conf in [
        "dev=lockstat:on",
        "dev=lockstat:cpu",
        "dev=lockstat:on,rseq=off",
        "dev=lockstat:on,dev=cluster:off",
    ] {
        let outcome = locks("on").conf(conf).ok();
        let line = outcome
            .stderr
            .lines()
            .find(|line| line.starts_with("lock ZONE"));
        assert!(
            line.is_some_and(|line| line.contains("holds")),
            "{}",
            outcome.stderr
        );
    }
}

#[test]
fn without_them_nothing_is_counted() {
    if !only_ebbtide("counts locks") {
        return;
    }
    let outcome = locks("off").ok();
    assert!(!outcome.stderr.contains("lock ZONE"), "{}", outcome.stderr);
}

#[test]
fn any_number_of_zones() {
    if !only_ebbtide("has zones") {
        return;
    }
    for zones in [1, 2, 3, 4, 5, 7, 8, 11, 12, 64] {
        let seed = format!("seed={zones} threads=6 seconds=1 gens=3 migrate trim back");
        let conf = format!("dev=zones:{zones}");
        Run::new(c_program("stress"))
            .args(&seed)
            .conf(&conf)
            .timeout(60)
            .ok();
    }
}

#[test]
fn zones_under_a_limit_help_each_other() {
    // Each zone's part is too small for one block; the region as a whole is not.
    Run::new(c_program("limits"))
        .args("work 1000")
        .limit(libc::RLIMIT_AS, 4 << 30)
        .conf("dev=zones:12")
        .timeout(60)
        .ok();
}
