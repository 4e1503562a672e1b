//! Readers for events of memory pressure: PSI counters, version 1's pressure level, and systemd's protocol.

use super::Group;
use crate::call::{Errno, Sysno, syscall};
use crate::file::{self, Descriptor, PathText, Text};
use crate::process;
use ebbtide_zone::plan::pressure::Stalls;

/// A PSI file: the time for which tasks have stalled for memory.
#[derive(Clone)]
pub struct Psi {
    path: PathText,
}

impl Psi {
    /// The PSI file of the process's group, else the machine's; and whether it is the machine's. `None`: the kernel
    /// has no PSI, or does not show it.
    pub fn own(unified: Option<&Group>) -> Option<(Self, bool)> {
        let group = unified.and_then(Self::of_group).map(|psi| (psi, false));
        group.or_else(|| Self::of_machine().map(|psi| (psi, true)))
    }

    fn of_machine() -> Option<Self> {
        Self::at(b"/proc/pressure/memory")
    }

    fn of_group(group: &Group) -> Option<Self> {
        Self::at(group.own_file(b"/memory.pressure")?.as_bytes())
    }

    fn at(path: &[u8]) -> Option<Self> {
        let psi = Self {
            path: PathText::join(&[path])?,
        };
        psi.stalled_us(Stalled::Some).is_some().then_some(psi)
    }

    /// Microseconds for which tasks have stalled since the beginning.
    pub fn stalled_us(&self, who: Stalled) -> Option<u64> {
        stalled_in(&self.path, who)
    }

    /// The path of the file.
    pub(super) fn path(&self) -> &PathText {
        &self.path
    }
}

/// Microseconds for which tasks have stalled, from a PSI file.
pub(crate) fn stalled_in(psi: &impl Text, who: Stalled) -> Option<u64> {
    let mut total = None;
    psi.lines(|line| {
        total = parse_stalled(line, who);
        // A file named by the environment may have no end.
        total.is_none() && Stalled::split(line).is_some()
    });
    total
}

/// The kind of stall that counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Stalled {
    /// At least one task stalls.
    Some,
    /// All tasks stall at once.
    Full,
}

impl Stalled {
    /// Splits off the first word of a line or a trigger, which names the kind of stall.
    fn split(text: &[u8]) -> Option<(Self, &[u8])> {
        let some = text.strip_prefix(b"some ").map(|rest| (Self::Some, rest));
        some.or_else(|| text.strip_prefix(b"full ").map(|rest| (Self::Full, rest)))
    }
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=42`.
fn parse_stalled(line: &[u8], who: Stalled) -> Option<u64> {
    let (is, rest) = Stalled::split(line)?;
    let value = rest.rsplit(|&byte| byte == b' ').next()?;
    let total = file::parse_number(value.strip_prefix(b"total=")?)?;
    (is == who).then_some(total)
}

/// Version 1's `memory.pressure_level`: an event says that the kernel reclaims memory from the group.
pub struct Level {
    event: Descriptor,
    _file: Descriptor,
}

impl Level {
    /// Registers for level `low`. `None`: version 2, or the kernel refuses.
    pub fn open(group: &Group) -> Option<Self> {
        if group.version() != super::group::Version::V1 {
            return None;
        }
        let file = group.own_file(b"/memory.pressure_level")?;
        let file = Descriptor::open(file.as_c_str(), libc::O_RDONLY).ok()?;
        let flags = libc::EFD_NONBLOCK | libc::EFD_CLOEXEC;
        // SAFETY: takes numbers.
        let event = unsafe { syscall!(Sysno::eventfd2, 0, flags) }.ok()?;
        let event = Descriptor::own(event);
        let control = group.own_file(b"/cgroup.event_control")?;
        let control = Descriptor::open(control.as_c_str(), libc::O_WRONLY).ok()?;
        let (mut first, mut second) = ([0; 20], [0; 20]);
        let text = PathText::join(&[
            decimal(event.number(), &mut first),
            b" ",
            decimal(file.number(), &mut second),
            b" low",
        ])?;
        let text = text.as_bytes();
        // SAFETY: `text` is readable.
        unsafe { syscall!(Sysno::write, control.number(), text.as_ptr(), text.len()) }.ok()?;
        Some(Self { event, _file: file })
    }

    /// Whether an event came since the last call.
    pub fn happened(&self) -> bool {
        let mut count = [0; 8];
        self.event.fill(&mut count) == Ok(8)
    }
}

/// A PSI trigger: a time of stall within a window.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Trigger {
    /// The kind of stall.
    pub who: Stalled,
    /// Microseconds of stall.
    pub stall_us: u64,
    /// Microseconds of the window.
    pub window_us: u64,
}

impl Trigger {
    /// A trigger that the kernel allows without privileges.
    pub const DEFAULT: Self = Self {
        who: Stalled::Some,
        stall_us: 150_000,
        window_us: 2_000_000,
    };

    /// A counter that turns such stalls into events.
    pub fn stalls(self) -> Stalls {
        Stalls::new(self.stall_us, self.window_us)
    }

    /// "some 150000 2000000".
    pub(crate) fn parse(text: &[u8]) -> Option<Self> {
        let text = text.strip_suffix(b"\0").unwrap_or(text).trim_ascii();
        let (who, numbers) = Stalled::split(text)?;
        let mut numbers = numbers.splitn(2, |&byte| byte == b' ');
        let trigger = Self {
            who,
            stall_us: file::parse_number(numbers.next()?)?,
            window_us: file::parse_number(numbers.next()?)?,
        };
        (trigger.stall_us > 0 && trigger.window_us > 0).then_some(trigger)
    }
}

/// The pressure settings of the environment: `MEMORY_PRESSURE_WATCH` and `MEMORY_PRESSURE_WRITE`.
#[derive(Clone, Copy)]
pub struct PressureEnvironment {
    path: Option<PathText>,
    write: Option<PathText>,
}

impl PressureEnvironment {
    /// No settings.
    pub const NOTHING: Self = Self {
        path: None,
        write: None,
    };

    /// The settings from this process's environment at its start: later, the program may have overwritten that
    /// memory. A program with more rights than its caller gets no settings.
    pub fn from_environment() -> Self {
        if process::is_secure() {
            return Self::NOTHING;
        }
        let copied = |name| process::environment(name, |value| PathText::join(&[value])).flatten();
        let Some(path) = copied(b"MEMORY_PRESSURE_WATCH") else {
            return Self::NOTHING;
        };
        let write = copied(b"MEMORY_PRESSURE_WRITE");
        Self {
            path: Some(path),
            write: write.and_then(|text| decode(text.as_bytes())),
        }
    }

    /// The source of events that the settings name.
    pub fn watch(&self) -> Watch {
        let (Some(path), write) = (self.path, self.write) else {
            return Watch::Unset;
        };
        if path.as_bytes() == b"/dev/null" {
            return Watch::Off;
        }
        if let Some(psi) = Psi::at(path.as_bytes()) {
            let trigger = write.and_then(|text| Trigger::parse(text.as_bytes()));
            return Watch::Psi(psi, trigger.unwrap_or(Trigger::DEFAULT));
        }
        Watch::Channel(EventChannelPath { path, write })
    }
}

/// A source of events.
#[derive(Clone)]
// The large variants cannot be boxed: there is no heap.
#[allow(clippy::large_enum_variant)]
pub enum Watch {
    /// Not set: the watcher chooses.
    Unset,
    /// `/dev/null`: no events are wanted.
    Off,
    /// A PSI file, and the trigger to apply to it.
    Psi(Psi, Trigger),
    /// A FIFO or a socket that becomes readable.
    Channel(EventChannelPath),
}

/// See [`Watch::Channel`].
#[derive(Clone)]
pub struct EventChannelPath {
    path: PathText,
    write: Option<PathText>,
}

/// Decodes base64. `None`: it is not base64.
pub(crate) fn decode(text: &[u8]) -> Option<PathText> {
    let text = text.trim_ascii();
    let text = text.strip_suffix(b"=").unwrap_or(text);
    let text = text.strip_suffix(b"=").unwrap_or(text);
    let mut out = PathText::join(&[])?;
    let (mut bits, mut count) = (0u32, 0);
    for &byte in text {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        (bits, count) = (bits << 6 | u32::from(value), count + 6);
        if count >= 8 {
            count -= 8;
            out = PathText::join(&[out.as_bytes(), &[(bits >> count) as u8]])?;
        }
    }
    Some(out)
}

/// An open FIFO or socket that becomes readable when memory is short.
pub struct EventChannel {
    file: Descriptor,
}

impl EventChannel {
    /// Opens the channel that the environment named. To a socket, it writes the bytes that the environment gave. To a
    /// FIFO it writes nothing, because it would read that itself.
    pub fn open(at: &EventChannelPath) -> Option<Self> {
        let path = at.path.as_c_str();
        let file = match Descriptor::open(path, libc::O_RDWR | libc::O_NONBLOCK) {
            Ok(file) if is_fifo(&file) => return Some(Self { file }),
            Err(Errno::ENXIO) => connect(at.path.as_bytes())?,
            _ => return None,
        };
        if let Some(write) = &at.write {
            let write = write.as_bytes();
            // SAFETY: `write` is readable.
            unsafe { syscall!(Sysno::write, file.number(), write.as_ptr(), write.len()) }.ok()?;
        }
        Some(Self { file })
    }

    /// Whether data came since the last call.
    pub fn happened(&self) -> bool {
        let mut happened = false;
        let mut buffer = [0u8; 64];
        // The loop is bounded, because a writer may never stop.
        for _ in 0..64 {
            let size = buffer.len();
            // SAFETY: the buffer is a valid place for its length.
            let read =
                unsafe { syscall!(Sysno::read, self.file.number(), buffer.as_mut_ptr(), size) };
            match read {
                Ok(count) if count > 0 => happened = true,
                _ => break,
            }
        }
        happened
    }
}

/// A file of another kind would be read for ever.
fn is_fifo(file: &Descriptor) -> bool {
    // SAFETY: zero is a valid `stat`.
    let mut stat: libc::stat = unsafe { core::mem::zeroed() };
    // SAFETY: `stat` is a valid place to write to.
    let known = unsafe { syscall!(Sysno::fstat, file.number(), &raw mut stat) }.is_ok();
    known && stat.st_mode & libc::S_IFMT == libc::S_IFIFO
}

fn connect(path: &[u8]) -> Option<Descriptor> {
    // SAFETY: zero is a valid address without a name.
    let mut address: libc::sockaddr_un = unsafe { core::mem::zeroed() };
    address.sun_family = libc::AF_UNIX as u16;
    if path.len() >= address.sun_path.len() {
        return None;
    }
    for (to, &from) in address.sun_path.iter_mut().zip(path) {
        *to = from as libc::c_char;
    }
    let kind = libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: takes numbers.
    let socket = unsafe { syscall!(Sysno::socket, libc::AF_UNIX, kind, 0) }.ok()?;
    let socket = Descriptor::own(socket);
    let size = size_of_val(&address);
    // SAFETY: the address is readable.
    unsafe { syscall!(Sysno::connect, socket.number(), &raw const address, size) }.ok()?;
    Some(socket)
}

fn decimal(mut number: usize, digits: &mut [u8; 20]) -> &[u8] {
    let mut first = digits.len();
    while number > 0 || first == digits.len() {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
    }
    &digits[first..]
}

#[cfg(test)]
mod tests {
    extern crate std;
    use super::*;
    use std::io::Write;
    use std::os::unix::ffi::OsStrExt;

    fn text(text: &[u8]) -> PathText {
        PathText::join(&[text]).unwrap()
    }

    fn told(path: impl AsRef<std::ffi::OsStr>, write: Option<&[u8]>) -> Watch {
        let told = PressureEnvironment {
            path: Some(text(path.as_ref().as_bytes())),
            write: write.map(text),
        };
        told.watch()
    }

    #[test]
    fn stalls_and_triggers() {
        let line = b"some avg10=0.00 avg60=1.50 avg300=0.00 total=1234";
        assert_eq!(parse_stalled(line, Stalled::Some), Some(1234));
        assert_eq!(parse_stalled(line, Stalled::Full), None);
        let line = b"full avg10=0.00 total=7";
        assert_eq!(parse_stalled(line, Stalled::Some), None);
        assert_eq!(parse_stalled(line, Stalled::Full), Some(7));
        let trigger = Trigger::parse(b"some 200000 2000000\0").unwrap();
        assert_eq!((trigger.stall_us, trigger.window_us), (200_000, 2_000_000));
        assert_eq!(trigger.who, Stalled::Some);
        let trigger = Trigger::parse(b"full 1 2").unwrap();
        assert_eq!((trigger.who, trigger.window_us), (Stalled::Full, 2));
        assert_eq!(Trigger::parse(b"none 1 2"), None);
        assert_eq!(Trigger::parse(b"some 1"), None);
    }

    #[test]
    fn base64() {
        let decoded = decode(b"c29tZSAyMDAwMDAgMjAwMDAwMA==").unwrap();
        assert_eq!(decoded.as_bytes(), b"some 200000 2000000");
        assert_eq!(decode(b"").unwrap().as_bytes(), b"");
        assert!(decode(b"a b").is_none());
        let mut digits = [0; 20];
        assert_eq!(decimal(0, &mut digits), b"0");
        assert_eq!(decimal(1203, &mut digits), b"1203");
    }

    #[test]
    fn the_protocol_of_systemd() {
        assert!(matches!(PressureEnvironment::NOTHING.watch(), Watch::Unset));
        assert!(matches!(told("/dev/null", None), Watch::Off));
        let dir = std::env::temp_dir();
        let name = |kind: &str| dir.join(std::format!("ebbtide-{kind}-{}", std::process::id()));

        let psi = name("psi");
        std::fs::write(&psi, "some avg10=0.00 total=9\nfull avg10=0.00 total=4\n").unwrap();
        let Watch::Psi(file, trigger) = told(&psi, Some(b"full 5 7")) else {
            panic!("a PSI file")
        };
        assert_eq!(file.stalled_us(Stalled::Some), Some(9));
        assert_eq!(file.stalled_us(trigger.who), Some(4));
        assert_eq!((trigger.stall_us, trigger.window_us), (5, 7));
        std::fs::remove_file(&psi).unwrap();
        assert_eq!(file.stalled_us(Stalled::Some), None);

        let fifo = name("fifo");
        let path = text(fifo.as_os_str().as_bytes());
        // SAFETY: a NUL-ended path.
        unsafe { libc::mkfifo(path.as_c_str().as_ptr(), 0o600) };
        let Watch::Channel(at) = told(&fifo, Some(b"hello")) else {
            panic!("a FIFO")
        };
        let channel = EventChannel::open(&at).unwrap();
        assert!(!channel.happened(), "it hears itself");
        let mut writer = std::fs::File::options().write(true).open(&fifo).unwrap();
        writer.write_all(b"x").unwrap();
        assert!(channel.happened() && !channel.happened());
        std::fs::remove_file(&fifo).unwrap();

        let socket = name("socket");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let Watch::Channel(at) = told(&socket, Some(b"hello")) else {
            panic!("a socket")
        };
        let channel = EventChannel::open(&at).unwrap();
        let (mut peer, _) = listener.accept().unwrap();
        let mut said = [0; 5];
        std::io::Read::read_exact(&mut peer, &mut said).unwrap();
        assert_eq!(&said, b"hello");
        assert!(!channel.happened());
        peer.write_all(b"low").unwrap();
        assert!(channel.happened() && !channel.happened());
        drop(peer);
        assert!(!channel.happened());
        std::fs::remove_file(&socket).unwrap();

        for path in ["/etc/passwd", "/dev/zero", "/no/such/file"] {
            let Watch::Channel(at) = told(path, None) else {
                panic!("{path}")
            };
            assert!(EventChannel::open(&at).is_none(), "{path}");
        }
    }

    #[test]
    fn the_machine_tells_or_not() {
        if let Some(psi) = Psi::of_machine() {
            assert!(psi.stalled_us(Stalled::Some).is_some());
        }
    }
}
