//! Real programs, whose memory is not all from malloc.

use std::fs;
use std::process::Command;

use ebbtide_tests::{Run, ensure_installed, skip};

use super::{built_program, has_helper};

/// Runs a program whose memory is not all from malloc, and checks what it says.
fn real(words: &[&str], says: &str) {
    let Some(ebbtide) = built_program("ebbtide") else {
        return;
    };
    if !has_helper() {
        return;
    }
    let mut run = Run::new(ebbtide)
        .plain()
        .args("run --exit=detached --conf exit_threshold=32M --");
    for word in words {
        run = run.arg(word);
    }
    let outcome = run.timeout(100).run();
    if outcome.stderr.contains("unexpected argument '--exit") {
        return skip("this program has no run --exit");
    }
    outcome.ok();
    assert_eq!(outcome.stdout.trim(), says, "{}", outcome.describe("said"));
}

#[test]
fn python() {
    let code = "a = [bytes(1 << 20) for _ in range(96)]; print(len(a), sum(map(len, a)) >> 20)";
    if ensure_installed("python3", "python3") {
        real(&["python3", "-c", code], "96 96");
        let fork = "import os\na = bytearray(64 << 20)\npid = os.fork()\n\
                    if not pid: os._exit(len(a) >> 20)\nprint(os.waitpid(-1, 0)[1] >> 8)";
        real(&["python3", "-c", fork], "64");
    }
}

#[test]
fn node() {
    let code = "let a = []; for (let i = 0; i < 96; i++) a.push(Buffer.alloc(1 << 20, 7)); \
                console.log(a.length, a[95][5])";
    if ensure_installed("node", "nodejs") {
        real(&["node", "-e", code], "96 7");
    }
}

#[test]
fn java() {
    let source = "class Large { public static void main(String[] a) { byte[][] b = new byte[96][]; \
                  for (int i = 0; i < 96; i++) { b[i] = new byte[1 << 20]; b[i][7] = (byte) i; } \
                  System.out.println(b[95][7]); } }";
    let dir = tempfile::tempdir().expect("temporary directory");
    let file = dir.path().join("Large.java");
    fs::write(&file, source).expect("source");
    if ensure_installed("java", "default-jdk-headless") {
        real(&["java", "-Xms128m", file.to_str().expect("path")], "95");
    }
}

/// A Go program with C in it takes the library; its heap is its own.
#[test]
fn go() {
    let Some(go) = ["go", "/usr/local/go/bin/go"].into_iter().find(|name| {
        let asked = Command::new(name).arg("version").output();
        asked.is_ok_and(|output| output.status.success())
    }) else {
        return skip("go");
    };
    let dir = tempfile::tempdir().expect("temporary directory");
    let (source, program) = (dir.path().join("large.go"), dir.path().join("large"));
    let text = "package main\n// #include <stdlib.h>\nimport \"C\"\nimport \"fmt\"\n\
                func main() {\n\tp := C.malloc(64 << 20)\n\tdefer C.free(p)\n\ta := make([][]byte, 96)\n\
                \tfor i := range a { a[i] = make([]byte, 1<<20); a[i][9] = byte(i) }\n\
                \tfmt.Println(a[95][9], p != nil)\n}\n";
    fs::write(&source, text).expect("source");
    let built = Command::new(go)
        .args(["build", "-o"])
        .arg(&program)
        .arg(&source)
        .env_remove("LD_PRELOAD")
        .env("CGO_ENABLED", "1")
        .env("GOFLAGS", "-mod=mod")
        .current_dir(dir.path())
        .output();
    if !built.is_ok_and(|output| output.status.success()) {
        return skip("go cannot build here");
    }
    real(&[program.to_str().expect("path")], "95 true");
}
