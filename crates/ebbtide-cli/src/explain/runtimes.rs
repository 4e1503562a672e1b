//! Runtimes that have a heap of their own beside malloc, and the setting that limits it.

use crate::smaps::Mapping;

/// A runtime, recognised by a mapped file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Runtime {
    /// The beginning of the file's name.
    file: &'static str,
    /// Its memory in one phrase.
    pub memory: &'static str,
    /// What makes that memory smaller, or Ebbtide's.
    pub remedy: &'static str,
    /// Whether the remedy needs Ebbtide.
    pub needs_ebbtide: bool,
}

const ALL: [Runtime; 6] = [
    Runtime {
        file: "libjvm.so",
        memory: "the Java heap, metaspace and compiled code",
        remedy: "set -Xmx, or let Java return memory: -XX:+UseZGC or -XX:G1PeriodicGCInterval=10000",
        needs_ebbtide: false,
    },
    Runtime {
        file: "node",
        memory: "the JavaScript heap and compiled code",
        remedy: "set --max-old-space-size",
        needs_ebbtide: false,
    },
    Runtime {
        file: "libpython",
        memory: "arenas of Python's own allocator for objects up to 512 bytes",
        remedy: "set PYTHONMALLOC=malloc, and Ebbtide serves and returns them",
        needs_ebbtide: true,
    },
    Runtime {
        file: "python",
        memory: "arenas of Python's own allocator for objects up to 512 bytes",
        remedy: "set PYTHONMALLOC=malloc, and Ebbtide serves and returns them",
        needs_ebbtide: true,
    },
    Runtime {
        file: "libphp",
        memory: "PHP's own allocator",
        remedy: "set USE_ZEND_ALLOC=0, and Ebbtide serves and returns it",
        needs_ebbtide: true,
    },
    Runtime {
        file: "php",
        memory: "PHP's own allocator",
        remedy: "set USE_ZEND_ALLOC=0, and Ebbtide serves and returns it",
        needs_ebbtide: true,
    },
];

/// The runtime of a process.
pub fn find(mappings: &[Mapping]) -> Option<Runtime> {
    let is_mapped = |runtime: &Runtime| {
        let mut files = mappings.iter().filter(|it| it.path.starts_with('/'));
        // Code and nothing else: a program may map a file of that name for other reasons.
        files.any(|it| it.permissions.contains('x') && it.file_name().starts_with(runtime.file))
    };
    ALL.into_iter().find(is_mapped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::smaps::parse;

    #[test]
    fn a_runtime_is_known_by_its_code() {
        let found = |line: &str| find(&parse(line)).map(|runtime| runtime.file);
        assert_eq!(
            found("1000-2000 r-xp 0 08:01 4 /usr/bin/python3.13\n"),
            Some("python")
        );
        assert_eq!(
            found("1000-2000 r--p 0 08:01 4 /usr/bin/python3.13\n"),
            None
        );
        assert_eq!(
            found("1000-2000 r-xp 0 08:01 4 /opt/jdk/lib/server/libjvm.so\n"),
            Some("libjvm.so")
        );
        assert_eq!(found("1000-2000 r-xp 0 08:01 4 /usr/bin/sort\n"), None);
    }
}
