//! Memory that becomes lazy before it goes: what is in it, and when it goes.

use ebbtide_tests::{Run, c_program, only_ebbtide};

fn lazy(mode: &str, conf: &str) {
    Run::new(c_program("lazy"))
        .args(mode)
        .conf(conf)
        .timeout(120)
        .ok_with_ebbtide("says what is lazy");
}

const ALWAYS: &str = "lazyfree=always,retain_ms=20,dev=lazy_ms:600000,workers=1";

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
    lazy(
        "content",
        &format!("{ALWAYS},dev=gather:inline,dev=zones:2"),
    );
}

#[test]
fn forked_children_have_their_own() {
    lazy(
        "fork",
        "lazyfree=always,retain_ms=20,dev=lazy_ms:2000,workers=2",
    );
}

#[test]
fn lazy_memory_goes_without_a_call() {
    lazy("goes", "lazyfree=always,retain_ms=100,dev=lazy_ms:1000");
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
    lazy("auto", "lazyfree=auto,retain_ms=20,dev=lazy_ms:1000");
}

#[test]
fn huge_pages_stay_whole() {
    lazy("huge", "lazyfree=always,retain_ms=50,dev=lazy_ms:600000");
}

/// What an idle program has resident, in MiB: after 2.5 s without lazy pages, after 8 s with them, and how much was lazy.
fn idle(conf: &str) -> [u64; 3] {
    let run = Run::new(c_program("lazy"))
        .args("idle")
        .conf(conf)
        .timeout(120)
        .run();
    run.verdict().expect("it ends well");
    let numbers = run.stdout.split(' ').filter_map(|word| word.parse().ok());
    let numbers: Vec<u64> = numbers.collect();
    numbers.try_into().expect("three numbers")
}

#[test]
fn an_idle_program_is_as_small_as_without_lazy_memory() {
    if !only_ebbtide("says what is lazy") {
        return;
    }
    let [off, auto, always] = ["off", "auto", "always"]
        .map(|choice| std::thread::spawn(move || idle(&format!("lazyfree={choice}"))));
    let off = off.join().expect("lazyfree=off");
    assert_eq!(off[2], 0);
    for (choice, it) in [("auto", auto), ("always", always)] {
        let it = it.join().expect(choice);
        assert!(it[2] >= 16, "{choice}: not much was lazy: {it:?}");
        assert!(it[0] <= off[0] + 8, "{choice}: {it:?}, off: {off:?}");
        assert!(it[1] <= off[1] + 8, "{choice}: {it:?}, off: {off:?}");
    }
}
