//! Huge pages, overcommit, memory, swap, processors and nodes.

use std::fs;
use std::mem;

use super::Check;
use crate::run::sample::kib_field;
use crate::{known, out, proc, run};

const THP: &str = "/sys/kernel/mm/transparent_hugepage";

/// Every fact about the machine.
pub fn all() -> Vec<Check> {
    vec![
        thp(),
        Check::info("thp_defrag", chosen("defrag")),
        khugepaged(),
        overcommit(),
        memory(),
        swap(),
        cpu_model(),
        cpus(),
        numa(),
        page_size(),
        Check::info("huge_page_size", huge_page_size()),
    ]
}

/// The trimmed text of a small file.
pub fn read(path: &str) -> Option<String> {
    fs::read_to_string(path).ok().map(|t| t.trim().to_owned())
}

/// A number from a small file.
pub fn read_number(path: &str) -> Option<u64> {
    read(path)?.parse().ok()
}

/// The word in brackets in a file such as `always [madvise] never`.
fn bracketed(text: &str) -> Option<&str> {
    text.split_once('[')?.1.split(']').next()
}

fn chosen(name: &str) -> String {
    read(&format!("{THP}/{name}"))
        .and_then(|t| bracketed(&t).map(str::to_owned))
        .unwrap_or_else(|| "unknown".into())
}

fn thp() -> Check {
    match chosen("enabled").as_str() {
        "never" => Check::limited(
            "thp_enabled",
            "never",
            "first touches cost more without huge pages",
            "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
        ),
        "unknown" => Check::limited(
            "thp_enabled",
            "not in this kernel",
            "first touches cost more without huge pages",
            "use a kernel with CONFIG_TRANSPARENT_HUGEPAGE",
        ),
        "always" => Check::ok(
            "thp_enabled",
            "always",
            "huge pages everywhere; Ebbtide keeps its low range small",
        ),
        mode => Check::ok("thp_enabled", mode, "huge pages in the growth range"),
    }
}

fn khugepaged() -> Check {
    match read_number(&format!("{THP}/khugepaged/max_ptes_none")) {
        Some(n) if n > 64 => Check::info(
            "khugepaged_max_ptes_none",
            format!("{n}: khugepaged may refill what was given back; Ebbtide advises it not to"),
        ),
        Some(n) => Check::info("khugepaged_max_ptes_none", n.to_string()),
        None => Check::info("khugepaged_max_ptes_none", "unknown"),
    }
}

fn overcommit() -> Check {
    match read_number("/proc/sys/vm/overcommit_memory") {
        Some(0) => Check::ok("overcommit", "0 (heuristic)", "reservations cost nothing"),
        Some(1) => Check::ok("overcommit", "1 (always)", "reservations cost nothing"),
        Some(2) => Check::info(
            "overcommit",
            "2 (strict): opened memory counts; it is opened in 64 MiB steps",
        ),
        _ => Check::info("overcommit", "unknown"),
    }
}

fn memory() -> Check {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let value = |name| kib_field(&text, name).map_or("unknown".into(), out::bytes);
    Check::info(
        "memory",
        format!(
            "{} total, {} available",
            value("MemTotal"),
            value("MemAvailable")
        ),
    )
}

fn swap() -> Check {
    let text = proc::text("/proc/swaps").unwrap_or_default();
    let areas: Vec<&str> = text.lines().skip(1).collect();
    if areas.is_empty() {
        return Check::info("swap", "none");
    }
    let kib: u64 = areas
        .iter()
        .filter_map(|l| l.split_whitespace().nth(2)?.parse::<u64>().ok())
        .sum();
    let zram = areas.iter().filter(|l| l.contains("zram")).count();
    Check::info(
        "swap",
        format!(
            "{} in {} areas, {zram} of them zram",
            out::bytes(kib * 1024),
            areas.len()
        ),
    )
}

fn sysconf(name: libc::c_int) -> i64 {
    // SAFETY: a plain call; an unknown name gives -1.
    unsafe { libc::sysconf(name) }
}

fn page_size() -> Check {
    let bytes = run::page_bytes();
    let value = format!("{bytes} B");
    if bytes == run::SMALL_PAGE_BYTES {
        return Check::ok("page_size", value, "the size of a frame");
    }
    let pages = &known::PAGES;
    Check::missing("page_size", value, pages.happens, pages.remedy)
}

fn huge_page_size() -> String {
    let bytes = read_number(&format!("{THP}/hpage_pmd_size"));
    bytes.map_or("unknown".into(), out::bytes)
}

/// Name of the processor.
fn cpu_model() -> Check {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text
        .lines()
        .find_map(|l| l.strip_prefix("model name")?.split_once(':'))
        .map_or("unknown", |(_, name)| name.trim());
    Check::info("cpu_model", name)
}

fn cpus() -> Check {
    // SAFETY: cpu_set_t is plain data; the call fills at most its size.
    let allowed = unsafe {
        let mut set: libc::cpu_set_t = mem::zeroed();
        match libc::sched_getaffinity(0, mem::size_of_val(&set), &mut set) {
            0 => libc::CPU_COUNT(&set).to_string(),
            _ => "unknown".into(),
        }
    };
    let possible = read("/sys/devices/system/cpu/possible").unwrap_or_else(|| "unknown".into());
    Check::info(
        "cpus",
        format!(
            "{allowed} allowed, {} present, possible {possible}",
            sysconf(libc::_SC_NPROCESSORS_CONF)
        ),
    )
}

fn numa() -> Check {
    let nodes = read("/sys/devices/system/node/online").unwrap_or_else(|| "0".into());
    Check::info("numa_nodes", nodes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_in_brackets() {
        assert_eq!(bracketed("always [madvise] never"), Some("madvise"));
        assert_eq!(bracketed("always"), None);
    }
}
