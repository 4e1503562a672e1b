//! Names for a reader in place of those in JSON and on the command line.

use crate::harness::peers::{self, AGAIN};

/// Entries that call the kernel, or that measure a case without the process in question.
const REFERENCES: [(&str, &str); 3] = [
    ("munmap", "munmap alone (reference)"),
    ("madvise", "madvise alone (reference)"),
    ("nobody dies", "no process ends (reference)"),
];

const SETTINGS: [(&str, &str); 14] = [
    ("workers=0", "no workers"),
    ("gather:inline", "gather inline"),
    ("thp=off", "no huge pages"),
    ("exit=detached", "detached exit"),
    ("depopulate:off", "no depopulation"),
    ("percpu_depopulate:off", "no per-CPU depopulation"),
    ("cluster:off", "no clusters"),
    ("lockstat:on", "locks counted"),
    ("lockstat:cpu", "locks timed"),
    ("lazyfree=auto", "lazy free"),
    ("lazyfree=off", "no lazy free"),
    ("lazyfree=always", "always lazy free"),
    ("pressure=off", "no pressure watch"),
    ("retain_ms=0", "no retention"),
];

fn of(list: &[(&str, &'static str)], name: &str) -> Option<&'static str> {
    let found = list.iter().find(|(id, _)| *id == name);
    found.map(|(_, label)| *label)
}

/// An allocator, or a variant of Ebbtide with its settings.
pub fn allocator(name: &str) -> String {
    if let Some(once) = name.strip_suffix(AGAIN) {
        return format!("{} again (for the noise)", allocator(once));
    }
    let Some(settings) = name.strip_prefix("ebbtide") else {
        let known = peers::label(name).or_else(|| of(&REFERENCES, name));
        return known.unwrap_or(name).into();
    };
    let settings = settings.trim_start_matches(", ").split(',');
    let labels = settings.filter(|s| !s.is_empty()).map(setting);
    let labels: Vec<String> = ["Ebbtide".into()].into_iter().chain(labels).collect();
    labels.join(", ")
}

fn setting(text: &str) -> String {
    let text = text.strip_prefix("dev=").unwrap_or(text);
    if let Some(label) = of(&SETTINGS, text) {
        return label.into();
    }
    let count = |prefix: &str, noun: &str| {
        let count = text.strip_prefix(prefix)?;
        let plural = if count == "1" { "" } else { "s" };
        Some(format!("{count} {noun}{plural}"))
    };
    count("workers=", "worker")
        .or_else(|| count("teardown_workers:", "exit worker"))
        .or_else(|| count("percpu_units:", "per-CPU unit"))
        .unwrap_or_else(|| text.into())
}

/// Whether it is another allocator: neither a variant of Ebbtide nor a reference, nor there for the noise.
pub fn is_peer(name: &str) -> bool {
    !name.starts_with("ebbtide") && !name.ends_with(AGAIN) && of(&REFERENCES, name).is_none()
}

/// A sentence or a caption begins with it.
pub fn capital(text: &str) -> String {
    let mut chars = text.chars();
    let first = chars.next().into_iter().flat_map(char::to_uppercase);
    first.chain(chars).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::harness::peers::TWIN;

    #[test]
    fn peers_are_neither_variants_nor_references() {
        assert!(is_peer("glibc") && is_peer("/a/lib.so") && !is_peer("munmap"));
        assert!(!is_peer(TWIN) && !is_peer("ebbtide, workers=0"));
        assert!(!is_peer("glibc (again)"));
        assert_eq!(allocator(TWIN), "Ebbtide again (for the noise)");
    }

    #[test]
    fn settings_are_spelled_out() {
        for (name, label) in [
            ("ebbtide", "Ebbtide"),
            (
                "ebbtide, dev=lockstat:cpu,dev=cluster:off",
                "Ebbtide, locks timed, no clusters",
            ),
            (
                "ebbtide, exit=detached,dev=teardown_workers:1",
                "Ebbtide, detached exit, 1 exit worker",
            ),
            ("ebbtide, workers=16", "Ebbtide, 16 workers"),
            ("ebbtide, unheard=of", "Ebbtide, unheard=of"),
            ("mimalloc3", "mimalloc 3"),
            ("/a/lib.so", "/a/lib.so"),
        ] {
            assert_eq!(allocator(name), label);
        }
        assert_eq!(capital("a block"), "A block");
    }
}
