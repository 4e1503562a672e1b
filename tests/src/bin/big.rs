//! `make big`: see [`ebbtide_tests::others::big`].

use std::process::ExitCode;

fn main() -> ExitCode {
    let names: Vec<String> = std::env::args().skip(1).collect();
    ebbtide_tests::others::big::main(&names)
}
