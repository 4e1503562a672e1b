//! Tests misuse: the process ends with SIGABRT and one line that says what and where. A bad `EBBTIDE_CONF` causes one
//! line, and the default applies. Only Ebbtide promises this: skipped on stand-ins.

use ebbtide_interface::keys::{KEYS, Kind};
use ebbtide_tests::{
    Outcome, Run, c_program, is_ebbtide, is_root, library, names_process, only_ebbtide, skip,
};

/// Requires SIGABRT, and exactly one line on stderr: `ebbtide: misuse[PID]: … 0x<the bad pointer> …`.
fn judge(outcome: &Outcome) -> Result<(), String> {
    if !outcome.killed_by(libc::SIGABRT) {
        return Err(outcome.describe("should have ended by SIGABRT"));
    }
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    let pointer = outcome.stdout.lines().next().unwrap_or("(no pointer)");
    match lines[..] {
        [line] if names_process(line, "misuse") && line.contains(pointer) => Ok(()),
        _ => Err(outcome.describe(&format!("should say one line `ebbtide: … {pointer} …`"))),
    }
}

fn misuse(cases: &str, conf: &str) {
    if !only_ebbtide("reports misuse") {
        return;
    }
    let bad: Vec<String> = cases
        .split_whitespace()
        .filter_map(|case| {
            let outcome = Run::new(c_program("misuse"))
                .arg(case)
                .conf(conf)
                .timeout(20)
                .run();
            judge(&outcome).err()
        })
        .collect();
    assert!(
        bad.is_empty(),
        "{} of the cases are wrong:\n{}",
        bad.len(),
        bad.join("\n\n")
    );
}

#[test]
fn double_free() {
    misuse(
        "twice-small twice-medium twice-run twice-large later-small later-large",
        "",
    );
}

#[test]
fn double_free_hardened() {
    misuse(
        "twice-small twice-medium twice-run twice-large later-small later-large",
        "harden=on",
    );
}

#[test]
fn double_free_without_rseq() {
    misuse(
        "twice-small twice-run twice-large later-small later-large",
        "rseq=off",
    );
}

#[test]
fn foreign_pointer() {
    misuse(
        "stack static code map low high realloc-stack usable-stack",
        "",
    );
}

#[test]
fn interior_pointer_into_an_object() {
    misuse("inside-1 inside-8 inside-16", "");
}

#[test]
fn interior_pointer_into_a_large_allocation() {
    misuse("inside-large-16 inside-large-page inside-large-2m", "");
}

#[test]
fn wrong_size() {
    misuse("sized-small sized-large", "");
}

/// Positive control: the judge must not accept libc's own messages.
#[test]
fn the_judge_can_say_no() {
    let outcome = Run::new(c_program("misuse"))
        .arg("twice-large")
        .plain()
        .run();
    assert!(judge(&outcome).is_err());
    let outcome = Run::new(c_program("misuse")).arg("stack").plain().run();
    assert!(judge(&outcome).is_err());
}

/// Runs `ls` (it allocates, `true` does not) under a configuration. Returns its lines on stderr.
fn conf_lines(conf: &str) -> Vec<String> {
    let outcome = Run::new("ls")
        .arg("/dev/null")
        .env("EBBTIDE_CONF", conf)
        .run();
    assert!(
        outcome.status.success(),
        "{}",
        outcome.describe("should work nevertheless")
    );
    outcome.stderr.lines().map(String::from).collect()
}

#[test]
fn bad_configuration_is_one_line_and_the_default() {
    if !only_ebbtide("reads EBBTIDE_CONF") {
        return;
    }
    for (conf, word) in [
        ("nosuchkey=1", "nosuchkey"),
        ("workers=banana", "workers"),
        ("workers=-1", "workers"),
        ("rseq=maybe", "rseq"),
        ("exit=sideways", "exit"),
        ("cluster", "cluster"),
        ("syscalls=basic,workers=2", "workers"),
        ("thp=off,nosuchkey=1,rseq=off", "nosuchkey"),
    ] {
        let lines = conf_lines(conf);
        assert_eq!(lines.len(), 1, "{conf}: {lines:?}");
        assert!(lines[0].starts_with("ebbtide: "), "{conf}: {lines:?}");
        assert!(lines[0].contains(word), "{conf}: {lines:?}");
    }
}

/// Every key accepts its values without a message. Another value causes one line, as does a name of another kind.
#[test]
fn each_key_is_silent_with_its_values() {
    if !only_ebbtide("reads EBBTIDE_CONF") {
        return;
    }
    for key in KEYS {
        let item = |value: &str| {
            let (before, between) = key.prefix();
            format!("{before}{}{between}{value}", key.name)
        };
        let number;
        let values: &[&str] = match key.kind {
            Kind::Word(words) => words,
            Kind::Number(low, _) => {
                number = low.to_string();
                &[&number]
            }
            Kind::Size => &["64M"],
            Kind::SizeOrPercent => &["64M", "10%"],
            Kind::Rate => &["off", "on", "512K"],
            Kind::OneOf => &["off", "on", "all", "300"],
            Kind::Path => &["/tmp"],
            Kind::Dump => &["/tmp/x", "/tmp/x@USR2"],
        };
        for value in values {
            let lines = conf_lines(&item(value));
            assert!(lines.is_empty(), "{}: {lines:?}", item(value));
        }
        assert_eq!(conf_lines(&item("!?")).len(), 1, "{}", key.name);
    }
    for (item, remedy) in [
        ("zones=2", "write dev=zones:VALUE"),
        ("dev=thp:on", "write thp=VALUE"),
        ("nosuchkey=1", "the keys are"),
    ] {
        let lines = conf_lines(item);
        assert!(lines.len() == 1 && lines[0].contains(remedy), "{lines:?}");
    }
}

/// A set-user-ID program ignores `EBBTIDE_CONF`. It is linked against a copy of the library, because the loader
/// ignores `LD_PRELOAD` there.
#[test]
fn secure_programs_ignore_the_configuration() {
    use std::os::unix::fs::PermissionsExt;
    let (Some(library), true, true) = (library(), is_ebbtide(), is_root()) else {
        return skip("AT_SECURE needs root and libebbtide.so");
    };
    let dir = tempfile::tempdir().expect("temporary directory");
    let open = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(dir.path(), open).expect("chmod");
    let copy = dir.path().join("libebbtide.so.0");
    std::fs::copy(&library, &copy).expect("copy the library");
    let source = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("c/fork.c");
    let program = dir.path().join("linked");
    let copy_name = copy.to_string_lossy().into_owned();
    let rpath = format!("-Wl,-rpath,{}", dir.path().display());
    ebbtide_tests::compile(
        &source,
        &program,
        &["-Wl,--no-as-needed", &copy_name, &rpath],
    );
    let run = || {
        Run::new(&program)
            .arg("child")
            .plain()
            .env("EBBTIDE_CONF", "nosuchkey=1")
            .run()
    };
    let normal = run();
    assert!(
        normal.stderr.starts_with("ebbtide: "),
        "{}",
        normal.describe("control: should complain")
    );
    std::os::unix::fs::chown(&program, Some(65534), Some(65534)).expect("chown");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o4755)).expect("chmod");
    let secure = run();
    assert!(
        secure.status.success(),
        "{}",
        secure.describe("should work")
    );
    assert!(
        secure.stderr.is_empty(),
        "{}",
        secure.describe("should be silent")
    );
}
