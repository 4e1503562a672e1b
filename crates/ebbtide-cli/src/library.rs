//! Finds the library, and checks by its symbols that it is Ebbtide. Its name tells nothing: a link may have any name, and another library the
//! usual one.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use ebbtide_tools::library;

use crate::elf;

/// Functions that every version of the library exports.
const MARKS: [&str; 2] = ["ebb_version", "ebb_stats"];

/// The absolute path of the library: the given one, or the first in the usual places.
pub fn find(given: Option<&Path>) -> Result<PathBuf> {
    let path = library::find(given)?;
    let shown = path.display();
    let remedy = "give the path of libebbtide.so with --lib PATH";
    match File::open(&path).map(|file| elf::exports(&file, &MARKS)) {
        Ok(Ok(true)) => Ok(path),
        Ok(Ok(false)) => {
            bail!(
                "{shown} is not Ebbtide: it does not export {}; {remedy}",
                MARKS.join(" and ")
            )
        }
        Ok(Err(problem)) => bail!("{shown} is no library for this machine: {problem}; {remedy}"),
        Err(error) => bail!("cannot read {shown}: {error}; allow it with: chmod a+r {shown}"),
    }
}

/// Whether an entry of `LD_PRELOAD` is Ebbtide: by its name, in any version, or by its symbols.
pub fn is_ebbtide(entry: &str) -> bool {
    let name = entry.rsplit('/').next().unwrap_or_default();
    library::is_named(name)
        || File::open(entry).is_ok_and(|file| elf::exports(&file, &MARKS) == Ok(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(path: &Path) -> String {
        format!("{:#}", find(Some(path)).unwrap_err())
    }

    #[test]
    fn a_library_is_known_by_its_symbols() {
        let dir = tempfile::tempdir().unwrap();
        let build = |name: &str, text: &str| {
            let (source, path) = (dir.path().join("x.c"), dir.path().join(name));
            std::fs::write(&source, text).unwrap();
            let mut cc = std::process::Command::new("cc");
            cc.args(["-shared", "-fPIC", "-o"]).arg(&path).arg(&source);
            assert!(
                cc.status().is_ok_and(|status| status.success()),
                "the tests need a C compiler"
            );
            path
        };
        let both = "int ebb_version(void) { return 0; }\nint ebb_stats(void) { return 0; }\n";
        let named_otherwise = build("other.so", both);
        assert_eq!(
            find(Some(&named_otherwise)).unwrap(),
            named_otherwise.canonicalize().unwrap()
        );
        assert!(is_ebbtide(&named_otherwise.to_string_lossy()));
        // A use is no definition.
        let stranger = build(
            "libebbtide.so",
            "int ebb_version(void);\nint ebb_stats(void) { return ebb_version(); }\n",
        );
        assert!(
            told(&stranger).contains("does not export ebb_version and ebb_stats; give the path")
        );
        let text = dir.path().join("x.c");
        assert!(
            told(&text).contains("no library for this machine: ")
                && told(&text).contains("--lib PATH")
        );
        assert!(is_ebbtide("/no/such/libebbtide.so.0") && !is_ebbtide(&text.to_string_lossy()));
    }
}
