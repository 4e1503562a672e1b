//! Checks huge pages, overcommit, memory, swap, processors and NUMA nodes.

use std::path::Path;

use ebbtide_tools::machine::{self, NO_THP, SMALL_PAGE_BYTES, THP, read};
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
pub fn read_number(path: impl AsRef<Path>) -> Option<u64> {
    read(path)?.parse().ok()
}

fn chosen(name: &str) -> String {
    machine::thp(name).unwrap_or_else(|| "unknown".into())
}

fn thp() -> Check {
    const ID: &str = "thp_enabled";
    match chosen("enabled").as_str() {
        "never" => Check::limited(ID, "never"),
        "unknown" => {
            Check::limited(ID, NO_THP).with_remedy("use a kernel with CONFIG_TRANSPARENT_HUGEPAGE")
        }
        "always" => Check::ok(ID, "always")
            .with_effect("huge pages everywhere; Ebbtide keeps its low range small"),
        mode => Check::ok(ID, mode),
    }
}

fn khugepaged() -> Check {
    let value = match read_number(format!("{THP}/khugepaged/max_ptes_none")) {
        Some(n) if n > 64 => {
            format!("{n}: khugepaged may refill released memory; Ebbtide advises it not to")
        }
        Some(n) => n.to_string(),
        None => "unknown".into(),
    };
    Check::info("khugepaged_max_ptes_none", value)
}

fn overcommit() -> Check {
    const ID: &str = "overcommit";
    match read_number("/proc/sys/vm/overcommit_memory") {
        Some(0) => Check::ok(ID, "0 (heuristic)"),
        Some(1) => Check::ok(ID, "1 (always)"),
        Some(2) => Check::info(
            ID,
            "2 (strict): opened memory counts; it is opened in 64 MiB steps",
        ),
        _ => Check::info(ID, "unknown"),
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
    let (size, areas) = (out::bytes(kib * 1024), areas.len());
    Check::info(
        "swap",
        format!("{size} in {areas} areas, {zram} of them zram"),
    )
}

fn page_size() -> Check {
    let bytes = machine::page_bytes();
    let value = format!("{bytes} B");
    match bytes {
        SMALL_PAGE_BYTES => Check::ok("page_size", value),
        _ => Check::missing("page_size", value).known(&known::PAGES),
    }
}

fn huge_page_size() -> String {
    let bytes = read_number(format!("{THP}/hpage_pmd_size"));
    bytes.map_or("unknown".into(), out::bytes)
}

fn numa() -> Check {
    let nodes = read("/sys/devices/system/node/online").unwrap_or_else(|| "0".into());
    Check::info("numa_nodes", nodes)
}
