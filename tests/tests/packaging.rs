//! What is around the packages: `scripts/release`, which sets versions.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

/// A copy of the files that name a version.
fn copy() -> tempfile::TempDir {
    let copy = tempfile::tempdir().expect("temporary directory");
    let script = fs::read_to_string(Path::new(ROOT).join("scripts/release")).expect("the script");
    let places = script
        .split("PLACES = [")
        .nth(1)
        .and_then(|rest| rest.split("\n]").next())
        .expect("a list");
    let places = places
        .lines()
        .filter_map(|line| line.trim().strip_prefix("(\"")?.split('"').next());
    for name in places.chain(["CHANGELOG.md"]) {
        let to = copy.path().join(name);
        fs::create_dir_all(to.parent().expect("a folder")).expect("a folder");
        fs::copy(Path::new(ROOT).join(name), to).expect("a copy");
    }
    copy
}

fn release(root: &Path, words: &[&str]) -> Output {
    let mut command = Command::new(PathBuf::from(ROOT).join("scripts/release"));
    command
        .arg("--root")
        .arg(root)
        .args(words)
        .output()
        .expect("scripts/release")
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

#[test]
fn a_release_sets_the_version_everywhere() {
    let copy = copy();
    let root = copy.path();
    assert!(release(root, &["--check"]).status.success());
    let output = release(root, &["0.77.0"]);
    assert!(output.status.success(), "{}", said(&output));
    assert!(said(&release(root, &["--check"])).contains("every place names 0.77.0"));
    let notes = said(&release(root, &["--notes"]));
    assert!(
        notes.contains("### ") && !notes.contains("## [0.77.0]"),
        "{notes}"
    );
    for (name, line) in [
        (
            "Cargo.toml",
            "ebbtide-sys = { path = \"crates/ebbtide-sys\", version = \"=0.77.0\" }",
        ),
        ("README.md", "version 0.77."),
        ("CHANGELOG.md", "## [Unreleased]\n\n## [0.77.0] - 20"),
    ] {
        let text = fs::read_to_string(root.join(name)).expect("a file");
        assert!(text.contains(line), "{name}");
    }
    for bad in ["0.77.0", "0.1.0", "1.0.0", "0.78"] {
        assert!(!release(root, &[bad]).status.success(), "{bad}");
    }
}

#[test]
fn a_place_with_another_version_is_found() {
    for (name, from, to) in [
        ("Cargo.toml", "version = \"=", "version = \"=9"),
        (
            "Cargo.lock",
            "name = \"ebbtide\"\nversion = \"",
            "name = \"ebbtide\"\nversion = \"9",
        ),
        ("README.md", "**Status:** version ", "**Status:** version 9"),
        (
            "crates/ebbtide-tools/src/library.rs",
            "\"libebbtide.so.0\"",
            "\"libebbtide.so.1\"",
        ),
        ("CHANGELOG.md", "## [Unreleased]", "## [Soon]"),
        (
            "CHANGELOG.md",
            "## [Unreleased]\n",
            "## [Unreleased]\n\n## [99.0.0] - 2027-01-01\n",
        ),
    ] {
        let copy = copy();
        let file = copy.path().join(name);
        let text = fs::read_to_string(&file).expect("a file");
        assert!(text.contains(from), "{name}");
        fs::write(&file, text.replacen(from, to, 1)).expect("a file");
        let output = release(copy.path(), &["--check"]);
        assert!(
            !output.status.success() && said(&output).contains(name),
            "{name}: {}",
            said(&output)
        );
    }
}
