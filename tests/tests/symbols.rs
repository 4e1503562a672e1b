//! What the library exports and what it needs, against `symbols.exported` and `symbols.undefined`.

use std::collections::BTreeSet;
use std::path::Path;

use ebbtide_tests::{is_ebbtide, library, only_ebbtide, skip};
use goblin::elf::Elf;
use goblin::elf::section_header::SHN_UNDEF;

type Names = BTreeSet<String>;

/// The dynamic symbols of a library: those it defines, those it needs.
fn dynamic_symbols(path: &Path) -> (Names, Names) {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
    let file = Elf::parse(&bytes).expect("an ELF file");
    let (mut defined, mut needed) = (Names::new(), Names::new());
    for symbol in &file.dynsyms {
        let name = file.dynstrtab.get_at(symbol.st_name).unwrap_or_default();
        let name = name.split('@').next().unwrap_or_default();
        if name.is_empty() {
            continue;
        }
        if symbol.st_shndx == SHN_UNDEF as usize {
            &mut needed
        } else {
            &mut defined
        }
        .insert(name.to_owned());
    }
    (defined, needed)
}

/// The entries of a list file: exact names, and prefixes (written with a `*` behind).
fn list(text: &str) -> (Names, Vec<&str>) {
    let lines = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'));
    let (prefixes, names): (Vec<_>, Vec<_>) = lines.partition(|line| line.ends_with('*'));
    let prefixes = prefixes
        .iter()
        .map(|line| line.trim_end_matches('*'))
        .collect();
    (names.into_iter().map(String::from).collect(), prefixes)
}

/// Everything wrong with a library's symbols.
fn faults(path: &Path) -> Vec<String> {
    let (defined, needed) = dynamic_symbols(path);
    let (exported, prefixes) = list(include_str!("../symbols.exported"));
    let (allowed, _) = list(include_str!("../symbols.undefined"));
    let mut faults = Vec::new();
    for name in exported.difference(&defined) {
        faults.push(format!("{name} is not exported"));
    }
    for name in defined.difference(&exported) {
        if !prefixes.iter().any(|prefix| name.starts_with(prefix)) {
            faults.push(format!("{name} is exported but not listed"));
        }
    }
    for name in needed.difference(&allowed) {
        faults.push(format!("{name} is needed but not allowed"));
    }
    faults
}

#[test]
fn symbols_are_those_listed() {
    if !only_ebbtide("has these symbols") {
        return;
    }
    let faults = faults(&library().expect("a library"));
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Every function that the header declares is there.
#[test]
fn the_header_is_true() {
    let header = Path::new(env!("CARGO_MANIFEST_DIR")).join("../include/ebbtide.h");
    let (true, Ok(text)) = (is_ebbtide(), std::fs::read_to_string(header)) else {
        return skip("no include/ebbtide.h, or not Ebbtide");
    };
    let (defined, _) = dynamic_symbols(&library().expect("a library"));
    let code: String = strip_comments(&text);
    let words = code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_' && c != '(');
    let declared = words.filter_map(|word| word.split_once('(').map(|(name, _)| name));
    let missing: Vec<&str> = declared
        .filter(|name| name.starts_with("ebb_") && !defined.contains(*name))
        .collect();
    assert!(missing.is_empty(), "declared but not exported: {missing:?}");
}

fn strip_comments(text: &str) -> String {
    let mut code = String::new();
    let mut rest = text;
    while let Some(start) = rest.find("/*") {
        code.push_str(&rest[..start]);
        rest = rest[start..]
            .find("*/")
            .map_or("", |end| &rest[start + end + 2..]);
    }
    code.push_str(rest);
    let lines = code
        .lines()
        .map(|line| line.split("//").next().unwrap_or_default());
    lines.collect::<Vec<_>>().join("\n")
}

/// No relocation is wanted in text, the stack is not executable, and no other library than libc's is
/// needed: a preloaded library must not pull in more.
#[test]
fn needs_libc_only() {
    if !only_ebbtide("has these names") {
        return;
    }
    let run = std::process::Command::new("readelf")
        .args(["-dlW"])
        .arg(library().expect("a library"))
        .env_remove("LD_PRELOAD")
        .output();
    let Ok(run) = run else { return skip("readelf") };
    let text = String::from_utf8_lossy(&run.stdout);
    let foreign: Vec<&str> = text
        .lines()
        .filter(|line| line.contains("(NEEDED)"))
        .filter(|line| {
            !["libc.so", "ld-linux", "libgcc_s"]
                .iter()
                .any(|ok| line.contains(ok))
        })
        .collect();
    assert!(foreign.is_empty(), "{foreign:?}");
    assert!(!text.contains("(TEXTREL)"), "text relocations");
    let stack = text
        .lines()
        .find(|line| line.contains("GNU_STACK"))
        .unwrap_or("");
    assert!(!stack.contains("RWE"), "executable stack");
}

/// The name that linked programs ask for changes with the interface. A version of any symbol would be wrong: with one
/// defined, malloc would not stand in for libc's; with one needed, older C libraries would not load the library.
#[test]
fn a_soname_and_no_versions() {
    if !only_ebbtide("has these names") {
        return;
    }
    let Some(faults) = naming_faults(&library().expect("a library")) else {
        return skip("readelf");
    };
    assert!(faults.is_empty(), "{faults:?}");
}

/// `None` without readelf.
fn naming_faults(path: &Path) -> Option<Vec<&'static str>> {
    let run = std::process::Command::new("readelf")
        .args(["-dVW"])
        .arg(path)
        .env_remove("LD_PRELOAD")
        .env("LC_ALL", "C")
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&run.stdout);
    let mut faults = Vec::new();
    if !text.contains("Library soname: [libebbtide.so.0]") {
        faults.push("another soname");
    }
    for (section, fault) in [
        (".gnu.version_d", "defines versions"),
        (".gnu.version_r", "needs versions"),
    ] {
        if text.contains(section) {
            faults.push(fault);
        }
    }
    Some(faults)
}

/// Positive control: another allocator, and libc itself, do not pass.
#[test]
fn the_lists_can_say_no() {
    let others = [
        "/usr/lib/x86_64-linux-gnu/libjemalloc.so.2",
        "/lib/x86_64-linux-gnu/libc.so.6",
    ];
    let mut tried = 0;
    for other in others
        .map(Path::new)
        .into_iter()
        .filter(|path| path.exists())
    {
        let faults = faults(other);
        assert!(
            faults.iter().any(|f| f.ends_with("not listed")),
            "{}",
            other.display()
        );
        assert!(
            faults.iter().any(|f| f.ends_with("not exported")),
            "{}",
            other.display()
        );
        let naming = naming_faults(other).unwrap_or_default();
        if ebbtide_tests::have("readelf") {
            assert!(naming.len() >= 2, "{}: {naming:?}", other.display());
        }
        tried += 1;
    }
    if tried == 0 {
        skip("no other library to try the lists on");
    }
}
