use super::*;
use std::process::Command;

/// A program with one inlined function in `main`; its path, and a raw profile of a call there.
fn built(dir: &Path, flags: &[&str]) -> (PathBuf, Raw) {
    let (source, program) = (dir.join("x.c"), dir.join("x"));
    let text = "#include <stdlib.h>\n\
                static inline __attribute__((always_inline)) void *inner(void) {\n  return malloc(7);\n}\n\
                __attribute__((noinline)) void *outer(void) {\n  void *p = inner();\n  __asm__(\"\");\n  return p;\n}\n\
                int main(void) { return outer() == 0; }\n";
    fs::write(&source, text).unwrap();
    let mut cc = Command::new("cc");
    cc.args(["-O1", "-no-pie"])
        .args(flags)
        .arg("-o")
        .arg(&program)
        .arg(&source);
    assert!(
        cc.status().is_ok_and(|status| status.success()),
        "the tests need a C compiler"
    );
    let listing = Command::new("objdump")
        .args(["-d", "--no-show-raw-insn"])
        .arg(&program)
        .output();
    let listing = String::from_utf8(listing.unwrap().stdout).unwrap();
    let (_, outer) = listing.split_once("<outer>:").unwrap();
    let call = outer
        .lines()
        .position(|line| line.contains("malloc"))
        .unwrap();
    // The address to which the call returns.
    let next = outer.lines().nth(call + 1).unwrap();
    let frame = u64::from_str_radix(next.trim().split(':').next().unwrap(), 16).unwrap();
    let mut raw = Raw {
        program: "x".into(),
        unix_ns: u64::MAX,
        mappings: smaps::parse(&format!(
            "00400000-00500000 r-xp 00000000 08:01 7 {}\n",
            program.display()
        )),
        ..Raw::default()
    };
    raw.stacks.push(RawStack {
        rate: 1,
        size: 16,
        thread: String::new(),
        frames: vec![frame, 0x10],
        samples: [(1, 7); 3],
        lifetimes: Default::default(),
    });
    (program, raw)
}

fn named(raw: &Raw) -> (Vec<String>, Profile, Vec<String>) {
    let mut notes = Vec::new();
    let profile = name(raw, None, &mut notes);
    let lines = profile.lines(&profile.stacks[0]).map(|line| line.shown());
    (lines.collect(), profile.clone(), notes)
}

#[test]
fn inlined_functions_have_their_lines() {
    let dir = tempfile::tempdir().unwrap();
    let (_, raw) = built(dir.path(), &["-g", "-Wl,--build-id=0x00ff10"]);
    let (lines, profile, notes) = named(&raw);
    assert_eq!(lines, ["inner (x.c:3)", "outer (x.c:6)", "0xf"]);
    assert_eq!(profile.mappings[0].build_id, "00ff10");
    assert!(notes.is_empty(), "{notes:?}");
}

#[test]
fn debug_information_may_be_elsewhere() {
    let dir = tempfile::tempdir().unwrap();
    let (program, raw) = built(dir.path(), &["-g"]);
    let debug = dir.path().join("x.debug");
    for (tool, arguments) in [
        (
            "objcopy",
            vec!["--only-keep-debug".into(), program.clone(), debug.clone()],
        ),
        ("strip", vec![program.clone()]),
        (
            "objcopy",
            vec![
                format!("--add-gnu-debuglink={}", debug.display()).into(),
                program.clone(),
            ],
        ),
    ] {
        assert!(
            Command::new(tool)
                .args(arguments)
                .status()
                .unwrap()
                .success()
        );
    }
    assert_eq!(named(&raw).0[..2], ["inner (x.c:3)", "outer (x.c:6)"]);
    fs::remove_file(debug).unwrap();
    let (lines, _, notes) = named(&raw);
    assert!(lines[0].starts_with("x+0x"), "{lines:?}");
    assert!(notes[0].contains("has no symbols: install"), "{notes:?}");
}

#[test]
fn missing_files_are_said() {
    let dir = tempfile::tempdir().unwrap();
    let (program, mut raw) = built(dir.path(), &[]);
    // As before, without lines.
    assert_eq!(named(&raw).0[0], "outer");
    raw.unix_ns = 1;
    assert!(named(&raw).2[0].contains("newer than the profile"));
    fs::remove_file(&program).unwrap();
    let (lines, _, notes) = named(&raw);
    assert!(lines[0].starts_with("x+0x"), "{lines:?}");
    assert!(
        notes[0].contains("No such file") && notes[0].contains("readable"),
        "{notes:?}"
    );
    raw.mappings[0].path.push_str(" (deleted)");
    assert!(named(&raw).2[0].contains("was replaced or removed"));
}
