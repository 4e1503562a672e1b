//! Memory that becomes lazy before it goes: what is in it, and when it goes.

use ebbtide_tests::{Run, c_program, is_ebbtide, skip};

fn lazy(mode: &str, conf: &str) {
    if !is_ebbtide() {
        return skip("only Ebbtide says what is lazy");
    }
    Run::new(c_program("lazy"))
        .args(mode)
        .conf(conf)
        .timeout(120)
        .ok();
}

const ALWAYS: &str = "lazyfree=always,retain_ms=20,lazy_ms=600000,workers=1";

#[test]
fn pages_hold_old_content_or_zero() {
    lazy("content", ALWAYS);
}

#[test]
fn pages_hold_old_content_or_zero_in_huge_pages_or_not() {
    lazy("content", &format!("{ALWAYS},thp=off"));
}

#[test]
fn ranges_with_calls_of_their_own() {
    lazy("content", &format!("{ALWAYS},gather=inline,zones=2"));
}

#[test]
fn forked_children_have_their_own() {
    lazy(
        "fork",
        "lazyfree=always,retain_ms=20,lazy_ms=2000,workers=2",
    );
}

#[test]
fn lazy_memory_goes_without_a_call() {
    lazy("goes", "lazyfree=always,retain_ms=100,lazy_ms=1000");
}

#[test]
fn nothing_is_lazy_when_off() {
    lazy("never", "lazyfree=off,retain_ms=20");
}

#[test]
fn nothing_is_lazy_without_workers() {
    lazy("never", "lazyfree=always,retain_ms=0,workers=0");
}

#[test]
fn locked_memory_is_released() {
    lazy("locked", "lazyfree=always,retain_ms=20");
}

#[test]
fn memory_that_comes_back_soon_becomes_lazy() {
    lazy("auto", "lazyfree=auto,retain_ms=20,lazy_ms=1000");
}

#[test]
fn huge_pages_stay_whole() {
    lazy("huge", "lazyfree=always,retain_ms=50,lazy_ms=600000");
}
