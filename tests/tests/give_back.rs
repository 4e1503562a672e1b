//! Memory comes back without a call, and nothing that lives is touched.

use ebbtide_tests::{Cgroup, Outcome, Run, Sysctl, c_program, is_ebbtide, is_root, skip};

fn give_back(mode: &str, conf: &str) {
    if !is_ebbtide() {
        return skip("only Ebbtide promises this");
    }
    let run = Run::new(c_program("give_back")).args(mode).timeout(60);
    if conf.is_empty() {
        run.ok();
    } else {
        run.conf(conf).ok();
    }
}

#[test]
fn a_large_block_while_the_program_sleeps() {
    give_back("large", "");
}

#[test]
fn a_large_block_of_small_pages() {
    give_back("large", "thp=off");
}

#[test]
fn a_large_block_with_many_workers() {
    give_back("large", "workers=8,dev=threshold:4096");
}

/// They start each other, without any thread-local storage of libc's.
#[test]
fn many_workers_without_rseq() {
    give_back("large", "workers=8,dev=threshold:4096,rseq=off");
}

#[test]
fn many_workers_beside_much_thread_local_storage() {
    if !is_ebbtide() {
        return skip("only Ebbtide promises this");
    }
    Run::new(c_program("tls"))
        .conf("workers=8,dev=threshold:4096")
        .ok();
}

#[test]
fn large_blocks_with_calls_of_their_own() {
    give_back("large", "dev=gather:inline");
}

#[test]
fn spans_of_pages() {
    give_back("objects", "");
}

#[test]
fn spans_of_pages_without_rseq() {
    give_back("objects", "rseq=off");
}

#[test]
fn spans_of_pages_without_huge_pages() {
    give_back("objects", "thp=off,dev=zones:2");
}

#[test]
fn pages_of_small_objects() {
    give_back("small", "");
}

#[test]
fn temporaries_do_not_fault_again() {
    give_back("loop", "");
}

#[test]
fn room_to_grow_into() {
    give_back("slack", "");
    give_back("slack", "thp=off");
}

#[test]
fn locked_memory() {
    if !is_root() {
        return skip("locking memory needs root");
    }
    give_back("mlock", "");
    give_back("mlock", "thp=off");
}

#[test]
fn setuid_beside_a_worker() {
    give_back("setuid", "");
}

#[test]
fn forks_beside_workers() {
    give_back("fork", "retain_ms=20,workers=4,dev=threshold:512");
}

#[test]
fn children_that_skip_the_handlers_beside_workers() {
    give_back("clone", "retain_ms=20,workers=4,dev=threshold:512");
    give_back(
        "clone",
        "retain_ms=20,workers=4,dev=threshold:512,dev=zones:12",
    );
}

#[test]
fn one_cpu_and_others() {
    give_back("cpu", "");
    give_back("cpu", "workers=4,dev=threshold:4096");
}

#[test]
fn huge_pages_are_really_split() {
    if !is_root() {
        return skip("the kernel's page flags are for root");
    }
    give_back("split", "");
}

#[test]
fn khugepaged_does_not_refill_what_was_depopulated() {
    if !is_root() {
        return skip("khugepaged is set by root");
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
        give_back("khuge", "");
    }
}

#[test]
fn workers_go() {
    give_back("threads", "");
}

#[test]
fn workers_do_not_stay_for_a_program_at_its_polling() {
    give_back("polls", "");
}

#[test]
fn caches_of_a_program_at_work() {
    give_back("busy", "");
}

#[test]
fn caches_of_a_program_at_work_without_rseq() {
    give_back("busy", "rseq=off");
}

/// It was made in advance, and waits for a free.
#[test]
fn a_worker_that_waits_looks_at_spans() {
    give_back("early", "retain_ms=4000,thp=off,workers=1");
}

#[test]
fn a_worker_that_waits_ends_before_a_long_window() {
    give_back("awaits", "retain_ms=60000,workers=1");
}

/// Slow paths leave parts of huge pages to a worker, as many as there is room for, and wait for nobody.
#[test]
fn a_worker_that_does_not_come_to_its_work() {
    if !is_ebbtide() {
        return skip("only Ebbtide has workers");
    }
    Run::new(c_program("stalled"))
        .conf("limit=8m,workers=1,retain_ms=100")
        .timeout(30)
        .ok();
}

/// A worker that has not begun holds no descriptor of the program's.
#[test]
fn a_worker_that_waits_for_a_cpu_at_its_start() {
    if !is_ebbtide() {
        return skip("only Ebbtide has workers");
    }
    Run::new(c_program("stalled")).args("pipe").timeout(30).ok();
}

#[test]
fn huge_pages_that_cannot_be_split() {
    give_back("held", "");
    give_back("held", "dev=zones:12");
}

/// The program's own thread sees no huge page that could not be split: a worker must, or what is told is wrong.
#[test]
fn what_release_says_is_what_the_system_got() {
    if !is_ebbtide() {
        return skip("only Ebbtide promises this");
    }
    // Nothing goes by itself meanwhile.
    let conf = "retain_ms=60000,pressure=off";
    let run = || Run::new(c_program("give_back")).conf(conf).timeout(60);
    let group = if is_root() {
        Cgroup::with_memory_max("shared", 2 << 30)
    } else {
        Err("a memory cgroup needs root".into())
    };
    match group {
        Err(why) => {
            skip(&why);
            run().arg("shared").ok();
        }
        Ok(group) => {
            let names = ["memory.current", "memory.usage_in_bytes"];
            let file = names.map(|name| group.file(name));
            let file = file.iter().find(|file| file.exists()).expect("usage");
            run().arg("shared").arg(file).cgroup(&group).ok();
        }
    }
}

#[test]
fn release_gives_back_every_page_without_a_live_byte() {
    for conf in [
        "dev=zones:1,retain_ms=60000",
        "dev=zones:1,retain_ms=60000,workers=0",
        "dev=zones:1,retain_ms=60000,dev=gather:inline",
        "dev=zones:1,retain_ms=60000,workers=4,dev=threshold:4096",
    ] {
        give_back("release", conf);
    }
}

/// A program under `c/tracer.c`: what it said of cut calls and of all, and of names asked for. `None`: skipped.
fn traced(mode: &str, conf: &str) -> Option<(Outcome, [u64; 3])> {
    if !is_ebbtide() {
        skip("calls that only Ebbtide makes");
        return None;
    }
    let run = Run::new(c_program("tracer")).arg(c_program("give_back"));
    let outcome = run.args(mode).conf(conf).timeout(60).ok();
    let told = outcome.stdout.lines().find(|line| line.starts_with("cut "));
    let numbers: Vec<u64> = told?
        .split_whitespace()
        .filter_map(|word| word.parse().ok())
        .collect();
    let numbers = numbers.try_into().expect("three numbers");
    Some((outcome, numbers))
}

/// The kernel may do less than asked with any call; the rest must follow, no page twice and none skipped.
#[test]
fn calls_that_return_short() {
    for conf in [
        "dev=zones:1,retain_ms=60000",
        "dev=zones:1,retain_ms=60000,workers=0",
        "dev=zones:1,retain_ms=60000,thp=off",
    ] {
        let Some((outcome, [cut, calls, _])) = traced("release", conf) else {
            return;
        };
        if calls == 0 {
            return skip("process_madvise is not used here");
        }
        assert!(cut > 20, "{}", outcome.describe("was hardly cut"));
    }
}

#[test]
fn the_kernels_version_is_asked_once() {
    if let Some((outcome, [_, _, names])) = traced("slack", "retain_ms=100") {
        assert!(names <= 1, "{}", outcome.describe("asked again and again"));
    }
}

/// The table of ranges for a system call once overflowed such a stack.
#[test]
fn the_smallest_stack_releases_in_place() {
    give_back("stack", "workers=0,retain_ms=0");
    give_back("stack", "retain_ms=0");
}

/// A worker that libc counted once ran the program's exit, without its descriptors.
#[test]
fn output_of_a_main_thread_that_leaves() {
    give_back("last", "");
}

fn spare(mode: &str, conf: &str) {
    if !is_ebbtide() {
        return skip("only Ebbtide says what its caches hold");
    }
    Run::new(c_program("spare"))
        .args(mode)
        .conf(conf)
        .timeout(120)
        .ok();
}

#[test]
fn a_freed_run_serves_the_next_request_of_its_size() {
    spare("again", "");
    spare("again", "rseq=off,workers=0");
}

#[test]
fn a_spare_run_goes_when_it_is_not_wanted() {
    spare("trim", "");
    spare("idle", "");
    spare("idle", "workers=0");
}

#[test]
fn no_run_is_kept_where_nothing_shall_stay() {
    for conf in ["retain_ms=0", "limit=64M", "dev=retain_max:1M", "harden=on"] {
        spare("never", conf);
    }
}

#[test]
fn forked_children_get_each_spare_run_once() {
    spare("fork", "");
}

/// Beyond four CPUs spare runs may add up, and are counted.
#[test]
fn spare_runs_of_a_machine_of_64_cpus() {
    if !is_ebbtide() || !is_root() {
        return skip("who counts CPUs differently needs a mount, and Ebbtide");
    }
    let file = tempfile::NamedTempFile::new().expect("temporary file");
    std::fs::write(&file, "0-63\n").expect("temporary file");
    let mount = format!(
        "mount --bind {} /sys/devices/system/cpu/possible",
        file.path().display()
    );
    let apart = |then: &str| {
        let script = format!("{mount} && {then}");
        Run::new("unshare")
            .args("-m sh -c")
            .arg(script)
            .timeout(120)
    };
    if !apart("true").plain().run().status.success() {
        return skip("mounts are refused");
    }
    let program = c_program("spare").display().to_string();
    for mode in ["again", "trim", "idle", "fork"] {
        apart(&format!("exec {program} {mode}")).ok();
    }
}
