//! Checks huge pages, overcommit, memory, swap, processors and NUMA nodes.

use ebbtide_tools::machine::{self, NO_THP, SMALL_PAGE_BYTES, THP, are_pages_known, read};
use ebbtide_tools::{out, proc};

use super::Check;
use ebbtide_interface::known;

/// All checks of the machine.
pub fn all() -> Vec<Check> {
    vec![
        thp(),
        Check::info("thp_defrag", chosen("defrag")),
        khugepaged(),
        overcommit(),
        Check::info("memory", machine::memory()),
        swap(),
        Check::info("cpu_model", machine::cpu_model()),
        Check::info("cpus", machine::cpus()),
        numa(),
        page_size(),
        Check::info("huge_page_size", huge_page_size()),
    ]
}

/// Reads a number from a small file.
pub fn read_number(path: &str) -> Option<u64> {
    read(path)?.parse().ok()
}

fn chosen(name: &str) -> String {
    machine::thp(name).unwrap_or_else(|| "unknown".into())
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
            NO_THP,
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
            format!("{n}: khugepaged may refill released memory; Ebbtide advises it not to"),
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

fn page_size() -> Check {
    let bytes = machine::page_bytes();
    let value = format!("{bytes} B");
    if bytes == SMALL_PAGE_BYTES {
        return Check::ok("page_size", value, "the size of a frame");
    }
    if are_pages_known(bytes) {
        return Check::limited(
            "page_size",
            value,
            "memory is returned in whole pages, each of several frames; huge pages are not used",
            "a kernel with 4 KiB pages returns more memory",
        );
    }
    let pages = &known::PAGES;
    Check::missing("page_size", value, pages.happens, pages.remedy)
}

fn huge_page_size() -> String {
    let bytes = read_number(&format!("{THP}/hpage_pmd_size"));
    bytes.map_or("unknown".into(), out::bytes)
}

fn numa() -> Check {
    let nodes = read("/sys/devices/system/node/online").unwrap_or_else(|| "0".into());
    Check::info("numa_nodes", nodes)
}
