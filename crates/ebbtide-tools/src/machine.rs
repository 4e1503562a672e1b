//! Facts about the machine: versions, memory, huge pages, processors.

use std::ffi::CStr;
use std::fs;
use std::path::Path;

use rustix::system::uname;
use rustix::thread::sched_getaffinity;

use crate::out;
use crate::proc::kib_field;

/// The directory of the kernel's settings for huge pages.
pub const THP: &str = "/sys/kernel/mm/transparent_hugepage";

/// The page size that the library requires.
pub const SMALL_PAGE_BYTES: u64 = 4096;

const UNKNOWN: &str = "unknown";

/// The facts that are stored with a measurement, by name.
pub fn facts() -> Vec<(String, String)> {
    let facts = [
        ("kernel", kernel().0),
        ("glibc", glibc()),
        ("thp_enabled", thp("enabled").unwrap_or(NO_THP.into())),
        ("memory", memory()),
        ("cpu_model", cpu_model()),
        ("cpus", cpus()),
    ];
    facts.map(|(name, value)| (name.into(), value)).into()
}

/// The text for a kernel without huge pages.
pub const NO_THP: &str = "not in this kernel";

/// The trimmed text of a small file.
pub fn read(path: impl AsRef<Path>) -> Option<String> {
    fs::read_to_string(path).ok().map(|t| t.trim().to_owned())
}

/// Release of the running kernel, such as `6.12.3-amd64`, and its version, which identifies the build.
pub fn kernel() -> (String, String) {
    let name = uname();
    let text = |field: &CStr| field.to_string_lossy().into_owned();
    (text(name.release()), text(name.version()))
}

/// Version of the C library.
pub fn glibc() -> String {
    // SAFETY: glibc returns a static NUL-terminated string.
    let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
    version.to_string_lossy().into_owned()
}

/// The chosen word of a huge page setting.
pub fn thp(setting: &str) -> Option<String> {
    let text = read(format!("{THP}/{setting}"))?;
    bracketed(&text).map(str::to_owned)
}

/// The word in brackets in a text such as `always [madvise] never`.
fn bracketed(text: &str) -> Option<&str> {
    text.split_once('[')?.1.split(']').next()
}

/// The memory of the machine, as text.
pub fn memory() -> String {
    let text = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let value = |name| kib_field(&text, name).map_or(UNKNOWN.into(), out::bytes);
    format!(
        "{} total, {} available",
        value("MemTotal"),
        value("MemAvailable")
    )
}

/// Bytes that are available to programs.
pub fn available_bytes() -> Option<u64> {
    kib_field(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable")
}

/// Name of the processor.
pub fn cpu_model() -> String {
    let text = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text
        .lines()
        .find_map(|l| l.strip_prefix("model name")?.split_once(':'));
    name.map_or(UNKNOWN, |(_, name)| name.trim()).into()
}

/// The number of CPUs of this process and of the machine, as text.
pub fn cpus() -> String {
    let allowed = match sched_getaffinity(None) {
        Ok(set) => set.count().to_string(),
        Err(_) => UNKNOWN.into(),
    };
    // SAFETY: a plain call; an unknown name gives -1.
    let present = unsafe { libc::sysconf(libc::_SC_NPROCESSORS_CONF) };
    let possible = read("/sys/devices/system/cpu/possible").unwrap_or_else(|| UNKNOWN.into());
    format!("{allowed} allowed, {present} present, possible {possible}")
}

/// The kernel's page size in bytes, from the auxiliary vector.
pub fn page_bytes() -> u64 {
    // SAFETY: a plain call; an unknown type gives 0.
    unsafe { libc::getauxval(libc::AT_PAGESZ) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn word_in_brackets() {
        assert_eq!(bracketed("always [madvise] never"), Some("madvise"));
        assert_eq!(bracketed("always"), None);
    }

    #[test]
    fn facts_of_this_machine_are_known() {
        let facts = facts();
        assert_eq!(facts.len(), 6);
        for (name, value) in facts.iter().filter(|(name, _)| name != "cpu_model") {
            assert!(!value.is_empty() && !value.contains(UNKNOWN), "{name}");
        }
    }
}
