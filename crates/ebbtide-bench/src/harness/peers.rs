//! The allocators that are compared, and the places of their libraries.

use std::env;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use anyhow::{Context, Result, bail, ensure};
use ebbtide_tools::complete::{CompletionCandidate, PathCompleter, ValueCompleter, candidate};
use ebbtide_tools::{library, out};
use serde::Deserialize;

use crate::harness::flags::BenchArgs;

/// A known peer, as `peers.json` lists it.
#[derive(Debug, Deserialize)]
struct Known {
    name: &'static str,
    /// Its name for a reader.
    label: &'static str,
    /// Empty for the C library: nothing is preloaded.
    #[serde(default)]
    library: &'static str,
    /// The command that makes the library available.
    #[serde(default)]
    remedy: &'static str,
    /// A variable of its environment. A jemalloc that was built with a prefix reads `_RJEM_MALLOC_CONF`. tcmalloc
    /// registers restartable sequences itself, so glibc must not have registered them.
    env: Option<(&'static str, &'static str)>,
    /// Whether its setting matters only if time passes: it is for the families that wait.
    #[serde(default)]
    is_waiting: bool,
}

static KNOWN: LazyLock<Vec<Known>> = LazyLock::new(|| {
    let known = serde_json::from_str(include_str!("peers.json"));
    known.expect("peers.json lists peers")
});

/// The name of a known peer for a reader.
pub fn label(name: &str) -> Option<&'static str> {
    known(name).map(|known| known.label)
}

fn known(name: &str) -> Option<&'static Known> {
    KNOWN.iter().find(|known| known.name == name)
}

fn names() -> String {
    let names: Vec<&str> = KNOWN.iter().map(|known| known.name).collect();
    names.join(", ")
}

/// The known peers whose names begin like this, then libraries, for completions.
pub fn candidates(current: &OsStr) -> Vec<CompletionCandidate> {
    let text = current.to_string_lossy();
    let known = KNOWN.iter().filter(|known| known.name.starts_with(&*text));
    let mut found: Vec<_> = known
        .map(|known| candidate(known.name, known.label))
        .collect();
    if text.contains('/') {
        found.extend(PathCompleter::file().complete(current));
    }
    found
}

/// Variables of the caller's environment that would change an allocator's behaviour.
pub const SCRUBBED_ENV: &[&str] = &[
    "LD_PRELOAD",
    "MALLOC_CONF",
    "_RJEM_MALLOC_CONF",
    "GLIBC_TUNABLES",
    "MALLOC_ARENA_MAX",
];

/// The cases that an entry takes, by name.
pub type Takes = fn(&str) -> bool;
/// All cases.
pub const ANY: Takes = |_| true;

/// One allocator in the rotation.
#[derive(Clone, Debug)]
pub struct Entry {
    /// Name in tables.
    pub name: String,
    /// Library to preload; none for the C library.
    pub library: Option<PathBuf>,
    /// An environment variable besides `LD_PRELOAD`.
    pub env: Option<(&'static str, &'static str)>,
    /// `EBBTIDE_CONF` of a variant of Ebbtide.
    pub conf: String,
    /// The way in which the process gets its large block.
    pub method: &'static str,
    /// The cases that it takes.
    pub takes: Takes,
    is_own: bool,
}

impl Entry {
    /// An entry that preloads nothing.
    pub fn plain(name: &str) -> Self {
        Entry {
            name: name.into(),
            library: None,
            env: None,
            conf: String::new(),
            method: "malloc",
            takes: ANY,
            is_own: false,
        }
    }

    /// An entry that uses the kernel directly, as a reference.
    pub fn reference(method: &'static str, takes: Takes) -> Self {
        Entry {
            method,
            takes,
            ..Entry::plain(method)
        }
    }

    /// A variant of this Ebbtide entry with its own setting.
    pub fn variant(&self, conf: &str, takes: Takes) -> Self {
        Entry {
            name: format!("ebbtide, {conf}"),
            conf: conf.into(),
            takes,
            ..self.clone()
        }
    }

    /// Whether the entry is Ebbtide.
    pub fn is_own(&self) -> bool {
        self.is_own
    }

    /// Whether its processes should have helpers that return their memory.
    pub fn is_detached(&self) -> bool {
        self.conf.contains("exit=detached")
    }

    fn path(name: &str, library: PathBuf) -> Self {
        Entry {
            library: Some(library),
            ..Entry::plain(name)
        }
    }
}

/// The known peers, as text for the help.
pub fn known_list() -> String {
    format!("Known allocators: {}", names())
}

/// Name of the first entry, with which the others are compared.
pub const OWN: &str = "ebbtide";
/// Name of the second entry: the same library again.
pub const TWIN: &str = "ebbtide (again)";
/// End of the name of an entry that is there again, for the noise.
pub const AGAIN: &str = " (again)";

/// The rotation: Ebbtide, Ebbtide again, then the peers that the user named, or all that are installed. With
/// `is_waiting`, they have the settings that matter only if time passes.
pub fn rotation(args: &BenchArgs, is_waiting: bool) -> Result<Vec<Entry>> {
    let own = library::find(args.lib.lib.as_deref())?;
    let own = |name| Entry {
        is_own: true,
        ..Entry::path(name, own.clone())
    };
    let mut entries = vec![own(OWN), own(TWIN)];
    let folders = folders();
    for name in &args.against {
        entries.push(named(name, &folders)?);
    }
    if args.against.is_empty() {
        for known in KNOWN.iter().filter(|known| is_waiting || !known.is_waiting) {
            match known.entry(&folders) {
                Ok(entry) => entries.push(entry),
                Err(error) => out::warning(&format!("{} is left out: {error}", known.name)),
            }
        }
    }
    Ok(entries)
}

/// Ebbtide, then `base` and the same again for the noise, then the peers that the user named, or the first of each group
/// that is installed.
pub fn one_of_each(args: &BenchArgs, base: &str, groups: &[&[&str]]) -> Result<Vec<Entry>> {
    let own = library::find(args.lib.lib.as_deref())?;
    let folders = folders();
    let first = named(base, &folders)?;
    let again = Entry {
        name: format!("{base}{AGAIN}"),
        ..first.clone()
    };
    let own = Entry {
        is_own: true,
        ..Entry::path(OWN, own)
    };
    let mut entries = vec![own, first, again];
    for name in args.against.iter().filter(|name| *name != base) {
        entries.push(named(name, &folders)?);
    }
    if args.against.is_empty() {
        for group in groups {
            let known = group.iter().filter_map(|name| known(name));
            let entries_of = known.map(|known| known.entry(&folders));
            match entries_of.reduce(|first, next| first.or(next)) {
                Some(Ok(entry)) => entries.push(entry),
                Some(Err(error)) => {
                    out::warning(&format!("{} is left out: {error}", group.join(" or ")));
                }
                None => {}
            }
        }
    }
    Ok(entries)
}

fn named(name: &str, folders: &[PathBuf]) -> Result<Entry> {
    if let Some(known) = known(name) {
        let entry = known.entry(folders);
        return entry.with_context(|| format!("--against {name}"));
    }
    if !name.contains('/') {
        bail!(
            "--against {name}: not a known allocator; give the path of a library, or one of: {}",
            names()
        );
    }
    let path = Path::new(name).canonicalize();
    let path =
        path.with_context(|| format!("--against {name}: no such library; check the path"))?;
    let short = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(Entry::path(&short, path.clone()))
}

impl Known {
    /// The peer in the rotation; an error with a remedy if its library is in none of the folders.
    fn entry(&self, folders: &[PathBuf]) -> Result<Entry> {
        let mut library = None;
        if !self.library.is_empty() {
            let mut files = folders.iter().map(|folder| folder.join(self.library));
            library = files.find_map(|file| file.canonicalize().ok());
            ensure!(
                library.is_some(),
                "{} is missing: {}",
                self.library,
                self.remedy
            );
        }
        Ok(Entry {
            library,
            env: self.env,
            ..Entry::plain(self.name)
        })
    }
}

/// The folders of the distribution; then those to which `bench/peers/build.sh` writes its libraries, relative to the
/// working directory and to this program in `target/release`.
fn folders() -> Vec<PathBuf> {
    const BUILT: &str = "bench/peers/target/release";
    let system = [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/lib",
    ];
    let mut folders: Vec<PathBuf> = system.map(PathBuf::from).into();
    folders.extend(env::var_os("EBBTIDE_PEERS").map(PathBuf::from));
    for start in [env::current_dir(), env::current_exe()]
        .into_iter()
        .flatten()
    {
        folders.extend(start.ancestors().map(|folder| folder.join(BUILT)));
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_missing_ones_have_a_remedy() {
        for (i, known) in KNOWN.iter().enumerate() {
            assert!(KNOWN[i + 1..].iter().all(|k| k.name != known.name));
            assert!(!known.label.is_empty());
            if !known.library.is_empty() {
                let told = known.entry(&[]).unwrap_err().to_string();
                assert!(
                    told.contains("build.sh") || told.contains("apt-get"),
                    "{told}"
                );
            }
        }
    }

    #[test]
    fn variants_take_only_their_cases() {
        let own = Entry::path(OWN, "/x.so".into());
        let one = own.variant("workers=0", |case| case == "a");
        assert!((one.takes)("a") && !(one.takes)("b") && (own.takes)("b"));
        assert_eq!(one.name, "ebbtide, workers=0");
        assert_eq!(Entry::reference("munmap", ANY).method, "munmap");
    }

    #[derive(clap::Parser)]
    struct Line {
        #[command(flatten)]
        args: BenchArgs,
    }

    #[test]
    fn the_base_is_there_twice() {
        // Any file stands for the library here.
        let line = ["bench", "--lib", "/proc/self/exe"];
        let names = |against: &[&str], groups: &[&[&str]]| -> Vec<String> {
            let words = line.iter().chain(against);
            let args = <Line as clap::Parser>::parse_from(words).args;
            let entries = one_of_each(&args, "glibc", groups).unwrap();
            entries.into_iter().map(|entry| entry.name).collect()
        };
        let three = [OWN, "glibc", "glibc (again)"];
        assert_eq!(names(&["--against", "glibc"], &[&["mimalloc3"]]), three);
        assert_eq!(names(&[], &[&["nonesuch"]]), three);
        // The C library is always there.
        let found = names(&[], &[&["nonesuch", "glibc", "jemalloc"]]);
        assert_eq!(found[3..], ["glibc"]);
    }

    #[test]
    fn peers_by_name_and_path() {
        assert!(named("glibc", &[]).unwrap().library.is_none());
        assert!(named("/no/such.so", &[]).is_err());
        let text = named("glibcc", &[]).unwrap_err().to_string();
        assert!(text.contains("mimalloc3"), "{text}");
    }
}
