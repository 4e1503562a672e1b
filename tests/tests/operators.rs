//! Tests C++'s operators, which the C++ library defines by `malloc`, and the memory resource of the header: `c/operators.cc`.

use std::path::{Path, PathBuf};

use ebbtide_tests::{Run, cxx_variant, have, skip};

/// The C++ compilers of this machine.
fn compilers() -> Vec<&'static str> {
    let found = ["g++", "clang++"];
    let found: Vec<&str> = found.into_iter().filter(|name| have(name)).collect();
    if found.is_empty() {
        skip("no C++ compiler");
    }
    found
}

fn run(program: &Path, mode: &str, conf: &str) {
    Run::new(program).arg(mode).conf(conf).timeout(120).ok();
}

fn plain(compiler: &str) -> PathBuf {
    cxx_variant(compiler, "operators", "plain", &[])
}

#[test]
fn all_forms_allocate_and_free() {
    for compiler in compilers() {
        for conf in ["", "harden=on", "rseq=off", "guard=10", "profile=4K"] {
            run(&plain(compiler), "forms", conf);
        }
    }
}

#[test]
fn without_memory_they_do_what_the_language_says() {
    for compiler in compilers() {
        for conf in ["", "harden=on", "profile=4K"] {
            run(&plain(compiler), "out-of-memory", conf);
        }
    }
}

/// The other forms call the two that the program defines. One that called `malloc` would end the program: its objects
/// would have no header.
#[test]
fn a_program_that_replaces_two_forms_gets_all_requests() {
    for compiler in compilers() {
        let program = cxx_variant(compiler, "operators", "replaced", &["-DREPLACED"]);
        for conf in ["", "harden=on"] {
            run(&program, "replaced", conf);
            run(&program, "forms", conf);
        }
    }
}

/// The same, if a library of the program defines them: it lies behind Ebbtide in the order of search.
#[test]
fn a_library_that_replaces_two_forms_gets_all_requests() {
    for compiler in compilers() {
        let flags = ["-DREPLACED", "-DLIBRARY", "-shared", "-fPIC"];
        let library = cxx_variant(compiler, "operators", "library.so", &flags);
        let path = format!(
            "-Wl,-rpath,{}",
            library.parent().expect("a folder").display()
        );
        let flags = [library.to_str().expect("UTF-8"), &path];
        let program = cxx_variant(compiler, "operators", "with-library", &flags);
        for conf in ["", "harden=on"] {
            run(&program, "library", conf);
            run(&program, "forms", conf);
        }
    }
}

/// The C++ library comes with a plugin, long after Ebbtide. The second plugin brings its own operators, and calls them itself.
#[test]
fn a_plugin_brings_the_cxx_library() {
    let symbolic = ["-DREPLACED", "-Wl,-Bsymbolic", "-shared", "-fPIC"];
    for compiler in compilers() {
        for (name, flags) in [("plugin.so", &symbolic[2..]), ("symbolic.so", &symbolic)] {
            let plugin = cxx_variant(compiler, "operators", name, flags);
            let open = format!("import ctypes; ctypes.CDLL({plugin:?}).forms_of_plugin()");
            for conf in ["", "harden=on"] {
                let python = Run::new("python3").args("-c").arg(&open).conf(conf);
                python.timeout(120).ok();
            }
        }
    }
}

#[test]
fn containers_take_memory_from_the_resource() {
    for compiler in compilers() {
        run(&plain(compiler), "resource", "");
        run(&plain(compiler), "resource", "harden=on");
    }
}
