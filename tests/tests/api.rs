//! The C interface: one run of `c/api.c` a topic, and what `malloc_info` and `malloc_stats` print.

use ebbtide_tests::{Run, c_program, is_ebbtide};

fn topic(name: &str) -> ebbtide_tests::Outcome {
    Run::new(c_program("api")).arg(name).ok()
}

#[test]
fn zero_sizes_null_and_plain_use() {
    topic("basic");
}

#[test]
fn impossible_sizes_are_enomem() {
    topic("too_big");
}

#[test]
fn more_than_the_machine_has_is_enomem() {
    topic("ram");
}

#[test]
fn alignments_up_to_a_gib() {
    topic("align");
}

#[test]
fn calloc_is_zero_after_dirty_reuse() {
    topic("zero");
}

#[test]
fn calloc_is_zero_among_large_neighbours() {
    topic("mix");
}

#[test]
fn realloc_keeps_the_content() {
    topic("resize");
}

#[test]
fn usable_size_is_usable() {
    topic("usable");
}

#[test]
fn free_leaves_errno_alone() {
    topic("errno");
}

#[test]
fn trim_gives_back_and_says_so() {
    topic("trim");
}

#[test]
fn sized_frees() {
    topic("sized");
}

/// The topics where the modes differ, in every mode.
#[test]
fn the_same_in_every_mode() {
    for conf in [
        "rseq=off",
        "dev=cluster:off",
        "thp=off",
        "syscalls=basic",
        "dev=zones:1",
        "harden=on",
    ] {
        for name in ["basic", "align", "zero", "mix", "resize"] {
            Run::new(c_program("api")).arg(name).conf(conf).ok();
        }
        if !is_ebbtide() {
            break;
        }
    }
}

#[test]
fn figures_grow_and_fall_and_malloc_info_is_xml() {
    let outcome = topic("info");
    let end = outcome
        .stdout
        .find("</malloc>")
        .expect("malloc_info ends its document");
    let start = outcome
        .stdout
        .find("<malloc")
        .expect("malloc_info starts its document");
    let xml = &outcome.stdout[start..end + "</malloc>".len()];
    let document = roxmltree::Document::parse(xml).expect("malloc_info is well-formed");
    let root = document.root_element();
    assert_eq!(root.tag_name().name(), "malloc");
    assert!(root.has_attribute("version"));
    for name in ["live_bytes", "released_bytes", "worker_ns"] {
        let is_told = |line: &str| line.split_whitespace().next() == Some(name);
        assert!(outcome.stderr.lines().any(is_told), "malloc_stats: {name}");
    }
}
