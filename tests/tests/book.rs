//! The book: each command on its pages runs, and so does each example of the manual pages.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use ebbtide_tests::{command_line, library};

/// Runs `scripts/run-docs` for these pages, or for all. `None`: nothing is built.
fn run_docs(pages: &[&Path]) -> Option<Output> {
    let (ebbtide, _) = (command_line()?, library()?);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut script = Command::new(root.join("scripts/run-docs"));
    let target = ebbtide.parent()?.parent()?;
    script.args(pages).env("CARGO_TARGET_DIR", target);
    Some(script.output().unwrap())
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

#[test]
fn every_command_of_the_book_runs() {
    let Some(output) = run_docs(&[]) else { return };
    assert!(output.status.success(), "{}", said(&output));
    println!("{}", said(&output));
}

/// Positive control: each page has one mistake that the script must find, and one block that it must not run.
#[test]
fn a_misspelt_command_is_found() {
    let dir = tempfile::tempdir().unwrap();
    let mistakes = [
        "ebbtide docter",
        "ebbtide run --sumary PROGRAM",
        "ebbtide run --conf retian_ms=5 PROGRAM",
        "ebbtide top --json --intervall 1s",
        "ebbtide bench micro --quik",
        "ebbtide run PROGRAMM",
        "make pakages",
        "cargo run --release -p ebbtide-example-globe",
        "cc program.c $(pkg-config --libs ebbtyde) -o program",
    ];
    let pages: Vec<PathBuf> = (0..mistakes.len())
        .map(|number| dir.path().join(format!("page{number}.md")))
        .collect();
    for (page, mistake) in pages.iter().zip(mistakes) {
        let text = format!(
            "<!-- not run: a control -->\n```sh\nexit 1\n```\n\n```sh\nebbtide --version\n{mistake}\n```\n"
        );
        std::fs::write(page, text).unwrap();
    }
    let paths: Vec<&Path> = pages.iter().map(PathBuf::as_path).collect();
    let Some(output) = run_docs(&paths) else {
        return;
    };
    let said = said(&output);
    assert!(!output.status.success(), "{said}");
    for (page, mistake) in pages.iter().zip(mistakes) {
        let page = page.display();
        assert!(
            said.contains(&format!("{page}:7 ended with status")),
            "{mistake}: {said}"
        );
        assert!(
            said.contains(&format!("not run: {page}:3: a control")),
            "{said}"
        );
    }
}
