//! `make matrix`: see [`ebbtide_tests::matrix`].

use std::process::ExitCode;

fn main() -> ExitCode {
    ebbtide_tests::matrix::main(std::env::args().skip(1).collect())
}
