//! The allocators that are compared, and the places of their libraries.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use ebbtide_tools::{library, out};

use crate::harness::flags::BenchArgs;

/// The source of a known peer's library.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// The C library: nothing is preloaded.
    Libc,
    /// A package of the distribution.
    System {
        file: &'static str,
        package: &'static str,
    },
    /// Built by `bench/peers/build.sh`.
    Built {
        file: &'static str,
        peer: &'static str,
    },
}

#[derive(Debug)]
struct Known {
    name: &'static str,
    source: Source,
    env: &'static [(&'static str, &'static str)],
}

const BACKGROUND: &str = "background_thread:true";
const BACKGROUND_1S: &str = "background_thread:true,dirty_decay_ms:1000";

const fn system(name: &'static str, file: &'static str, package: &'static str) -> Known {
    Known {
        name,
        source: Source::System { file, package },
        env: &[],
    }
}

const fn built(name: &'static str, file: &'static str, peer: &'static str) -> Known {
    Known {
        name,
        source: Source::Built { file, peer },
        env: &[],
    }
}

const KNOWN: &[Known] = &[
    Known {
        name: "glibc",
        source: Source::Libc,
        env: &[],
    },
    system("jemalloc-system", "libjemalloc.so.2", "libjemalloc2"),
    Known {
        env: &[("MALLOC_CONF", BACKGROUND)],
        ..system("jemalloc-system-bg", "libjemalloc.so.2", "libjemalloc2")
    },
    system("mimalloc2-system", "libmimalloc.so.2.0", "libmimalloc2.0"),
    system(
        "gperftools-system",
        "libtcmalloc_minimal.so.4",
        "libtcmalloc-minimal4",
    ),
    built("jemalloc", "libpeer_jemalloc.so", "jemalloc"),
    Known {
        // A jemalloc that was built with a prefix reads this name.
        env: &[("_RJEM_MALLOC_CONF", BACKGROUND)],
        ..built("jemalloc-bg", "libpeer_jemalloc.so", "jemalloc")
    },
    built("mimalloc3", "libpeer_mimalloc3.so", "mimalloc3"),
    built(
        "mimalloc-pprof",
        "libpeer_mimalloc_pprof.so",
        "mimalloc-pprof",
    ),
    built("snmalloc", "libpeer_snmalloc.so", "snmalloc"),
    Known {
        // This peer registers restartable sequences itself, so glibc must not have registered them.
        env: &[("GLIBC_TUNABLES", "glibc.pthread.rseq=0")],
        ..built("tcmalloc", "libpeer_tcmalloc.so", "tcmalloc")
    },
];

/// Settings that matter only if time passes: for the families that wait.
const KNOWN_WAITING: &[Known] = &[
    Known {
        env: &[("MALLOC_CONF", BACKGROUND_1S)],
        ..system("jemalloc-system-bg-1s", "libjemalloc.so.2", "libjemalloc2")
    },
    Known {
        env: &[("_RJEM_MALLOC_CONF", BACKGROUND_1S)],
        ..built("jemalloc-bg-1s", "libpeer_jemalloc.so", "jemalloc")
    },
];

fn all_known() -> impl Iterator<Item = &'static Known> {
    KNOWN.iter().chain(KNOWN_WAITING)
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
    /// Environment variables besides `LD_PRELOAD`.
    pub env: Vec<(String, String)>,
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
            env: Vec::new(),
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

    fn known(known: &Known, library: Option<PathBuf>) -> Self {
        let env = known.env.iter();
        Entry {
            library,
            env: env.map(|(k, v)| ((*k).into(), (*v).into())).collect(),
            ..Entry::plain(known.name)
        }
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
    let names: Vec<&str> = all_known().map(|k| k.name).collect();
    format!("Known allocators: {}", names.join(", "))
}

/// Name of the first entry, with which the others are compared.
pub const OWN: &str = "ebbtide";
/// Name of the second entry: the same library again.
pub const TWIN: &str = "ebbtide (again)";

/// The rotation: Ebbtide, Ebbtide again, then the peers that the user named, or all that are installed. With
/// `is_waiting`, they have the settings that matter only if time passes.
pub fn rotation(args: &BenchArgs, is_waiting: bool) -> Result<Vec<Entry>> {
    let own = library::find(args.lib.lib.as_deref())?;
    let own = |name| Entry {
        is_own: true,
        ..Entry::path(name, own.clone())
    };
    let mut entries = vec![own(OWN), own(TWIN)];
    let folders = built_folders();
    if args.against.is_empty() {
        let waiting = if is_waiting { KNOWN_WAITING } else { &[] };
        for known in KNOWN.iter().chain(waiting) {
            match locate(known.source, &folders) {
                Ok(library) => entries.push(Entry::known(known, library)),
                Err(remedy) => out::warning(&format!("{} is left out: {remedy}", known.name)),
            }
        }
        return Ok(entries);
    }
    for name in &args.against {
        entries.push(named(name, &folders)?);
    }
    Ok(entries)
}

fn named(name: &str, folders: &[PathBuf]) -> Result<Entry> {
    if let Some(known) = all_known().find(|k| k.name == name) {
        return match locate(known.source, folders) {
            Ok(library) => Ok(Entry::known(known, library)),
            Err(remedy) => bail!("--against {name}: {remedy}"),
        };
    }
    if name.contains('/') {
        let Ok(path) = Path::new(name).canonicalize() else {
            bail!("--against {name}: no such library; check the path");
        };
        let short = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        return Ok(Entry::path(&short, path));
    }
    let all: Vec<&str> = all_known().map(|k| k.name).collect();
    bail!(
        "--against {name}: not a known allocator; give the path of a library, or one of: {}",
        all.join(", ")
    )
}

/// The library's path (none for the C library), or the way to get it.
fn locate(source: Source, folders: &[PathBuf]) -> Result<Option<PathBuf>, String> {
    let first = |folders: &[PathBuf], file: &str| {
        folders
            .iter()
            .map(|d| d.join(file))
            .find_map(|p| p.canonicalize().ok())
    };
    match source {
        Source::Libc => Ok(None),
        Source::System { file, package } => first(&system_folders(), file)
            .map(Some)
            .ok_or_else(|| format!("{file} is not installed: apt-get install {package}")),
        Source::Built { file, peer } => first(folders, file)
            .map(Some)
            .ok_or_else(|| format!("{file} is not built: bench/peers/build.sh {peer}")),
    }
}

fn system_folders() -> Vec<PathBuf> {
    [
        "/usr/lib/x86_64-linux-gnu",
        "/usr/lib/aarch64-linux-gnu",
        "/usr/lib64",
        "/usr/lib",
        "/usr/local/lib",
    ]
    .map(PathBuf::from)
    .to_vec()
}

/// The folders to which `bench/peers/build.sh` writes its libraries, relative to the working directory and to this
/// program in `target/release`.
fn built_folders() -> Vec<PathBuf> {
    const INSIDE: &str = "bench/peers/target/release";
    let mut folders: Vec<PathBuf> = env::var_os("EBBTIDE_PEERS")
        .map(PathBuf::from)
        .into_iter()
        .collect();
    for start in [env::current_dir().ok(), env::current_exe().ok()]
        .into_iter()
        .flatten()
    {
        folders.extend(start.ancestors().map(|d| d.join(INSIDE)));
    }
    folders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_missing_ones_have_a_remedy() {
        for (i, known) in all_known().enumerate() {
            assert!(all_known().skip(i + 1).all(|k| k.name != known.name));
            if let Source::Built { .. } = known.source {
                let remedy = locate(known.source, &[]).unwrap_err();
                assert!(remedy.contains("build.sh"), "{remedy}");
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

    #[test]
    fn peers_by_name_and_path() {
        assert!(named("glibc", &[]).unwrap().library.is_none());
        assert!(named("/no/such.so", &[]).is_err());
        let text = named("glibcc", &[]).unwrap_err().to_string();
        assert!(text.contains("mimalloc3"), "{text}");
    }
}
