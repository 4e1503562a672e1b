//! Emulators that this program may run under.

use ebbtide_tools::proc;

/// The user-mode emulator that this program runs under. It shows a made-up `/proc/self/maps`, but none for a thread.
pub fn emulator() -> Option<String> {
    emulator_in(&proc::text("/proc/thread-self/maps")?)
}

fn emulator_in(maps: &str) -> Option<String> {
    maps.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let is_code = words.nth(1)?.contains('x');
        let name = words.nth(3)?.rsplit('/').next()?;
        (is_code && name.starts_with("qemu-")).then(|| name.to_owned())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_emulator_is_code_that_is_mapped() {
        let emulated = "00400000-00abc000 r-xp 00001000 08:01 99 /usr/bin/qemu-x86_64-static\n";
        assert_eq!(emulator_in(emulated).unwrap(), "qemu-x86_64-static");
        let read = "00400000-00abc000 r--p 00001000 08:01 99 /tmp/qemu-x86_64-static\n";
        assert_eq!(emulator_in(read), None);
        assert_eq!(emulator(), None);
    }
}
