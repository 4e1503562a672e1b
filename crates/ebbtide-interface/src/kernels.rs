//! Kernels for aarch64 that do not abort sections as they should.
//!
//! From Linux 6.19 up to and including 7.0.13, and in the candidates of 7.1, the kernel for arm64 does not abort a section
//! when its thread is preempted and then goes on on the same CPU. Two threads can then be inside at once. These are
//! versions of the upstream kernel: a distribution may have repaired an older version without a new number, or have taken
//! the fault into one. (Upstream: 411c1cf43039 "arm64/entry: Fix arm64-specific rseq brokenness", in 7.1 and 7.0.14.)
//!
//! Pure functions of the release that uname(2) names, for the library and for `ebbtide doctor`.

/// Whether a kernel of this release aborts sections of aarch64. What cannot be read does not, and neither does what is
/// older than sections are: an emulator, or the personality `UNAME26`, hides the version.
pub fn aborts_sections(release: &[u8]) -> bool {
    let Some(version) = Version::read(release) else {
        return false;
    };
    match (version.major, version.minor) {
        (0..=3, _) | (4, 0..18) => false,
        (6, 19) => false,
        (7, 0) => version.patch >= 14,
        (7, 1) => !version.is_candidate,
        _ => true,
    }
}

struct Version {
    major: u32,
    minor: u32,
    patch: u32,
    is_candidate: bool,
}

impl Version {
    /// `6.19.14+deb13-arm64`, `7.0.0-rc3`, `7.1-rc2`, `7.0`: two numbers or three, then anything.
    fn read(release: &[u8]) -> Option<Self> {
        let (major, rest) = number(release)?;
        let (minor, rest) = number(rest.strip_prefix(b".")?)?;
        let third = rest.strip_prefix(b".").and_then(number);
        let (patch, rest) = third.unwrap_or((0, rest));
        Some(Self {
            major,
            minor,
            patch,
            is_candidate: rest.starts_with(b"-rc"),
        })
    }
}

/// The number that a text begins with, and what is behind it.
fn number(text: &[u8]) -> Option<(u32, &[u8])> {
    let digits = text.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (number, rest) = text.split_at(digits);
    Some((core::str::from_utf8(number).ok()?.parse().ok()?, rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kernels_that_do_not_abort_sections_are_recognised() {
        for release in [
            "6.19",
            "6.19.0",
            "6.19.0-rc1",
            "6.19.14+deb13-cloud-arm64",
            "6.19.200",
            "7.0",
            "7.0-rc1",
            "7.0.0-14-generic",
            "7.0.0-rc7-next-20260401",
            "7.0.4_1",
            "7.0.13",
            "7.0.13+deb13-cloud-arm64",
            "7.1.0-rc2",
            "7.1-rc1+",
        ] {
            assert!(!aborts_sections(release.as_bytes()), "{release}");
        }
    }

    #[test]
    fn other_kernels_are_taken() {
        for release in [
            "4.18.0-553.el8_10.aarch64",
            "5.10.0-32-arm64",
            "6.1.0-56-cloud-arm64",
            "6.12.117+deb13-arm64",
            "6.18.15",
            "6.18.99-v8+",
            "6.20",
            "7.0.14",
            "7.0.14-arch1-1",
            "7.0.130",
            "7.1.0",
            "7.1",
            "7.1.5-arch1-2",
            "7.2.13+deb14-cloud-arm64",
            "7.10.0-rc1",
            "8.0.1",
            "61.9.3",
        ] {
            assert!(aborts_sections(release.as_bytes()), "{release}");
        }
    }

    #[test]
    fn an_unreadable_or_impossible_release_is_refused() {
        for release in [
            "",
            "7",
            "7.",
            "seven",
            "x7.2",
            "-7.2",
            "99999999999.1",
            "2.6.79",
            "3.10.0",
            "4.4.0",
            "4.17.19",
        ] {
            assert!(!aborts_sections(release.as_bytes()), "{release}");
        }
    }
}
