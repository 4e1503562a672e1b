//! Huge pages that hold freed memory: `c/huge_pages.c`.

use ebbtide_tests::{Run, Sysctl, c_program, needs_root, skip};

fn huge_pages(mode: &str, conf: &str) {
    let run = Run::new(c_program("huge_pages")).args(mode).conf(conf);
    run.timeout(60).ok_with_ebbtide("splits huge pages");
}

#[test]
fn huge_pages_are_really_split() {
    if !needs_root("the kernel's page flags") {
        return;
    }
    huge_pages("split", "");
}

#[test]
fn khugepaged_does_not_refill_what_was_depopulated() {
    if !needs_root("setting khugepaged") {
        return;
    }
    let dir = "/sys/kernel/mm/transparent_hugepage";
    let scan = format!("{dir}/khugepaged/scan_sleep_millisecs");
    let Some(_fast) = Sysctl::set(&scan, "10") else {
        return skip("khugepaged cannot be set");
    };
    let Some(_far) = Sysctl::set(&format!("{dir}/khugepaged/pages_to_scan"), "262144") else {
        return skip("khugepaged cannot be set");
    };
    for enabled in ["madvise", "always"] {
        let Some(_enabled) = Sysctl::set(&format!("{dir}/enabled"), enabled) else {
            return skip("huge pages cannot be set");
        };
        huge_pages("khuge", "");
    }
}

#[test]
fn huge_pages_that_cannot_be_split() {
    huge_pages("held", "");
    huge_pages("held", "dev=zones:12");
}
