//! A profile as the library keeps it: samples by addresses. Its layout is that of [`ebbtide_interface::profile`].

use ebbtide_interface::profile::{self as layout, Area, File, LIFETIMES, MAX_FRAMES, Stack};
use ebbtide_interface::records::class_bytes;

use crate::memory::words_of;
use crate::smaps::{self, Mapping};

pub use ebbtide_interface::profile::Unwinder;

/// No class is above it: its objects would have 2^60 bytes.
const MAX_CLASS: u64 = 9 + 8 * 52;

/// A profile by addresses.
#[derive(Clone, Debug, Default)]
pub struct Raw {
    /// The area's first words.
    pub area: Area,
    /// Its stacks.
    pub stacks: Vec<RawStack>,
    /// The process's mappings.
    pub mappings: Vec<Mapping>,
    /// The name of the program's file.
    pub program: String,
    /// The process.
    pub pid: u64,
    /// When it was read, in nanoseconds of the monotonic clock.
    pub time_ns: u64,
    /// When it was read, in nanoseconds since 1970.
    pub unix_ns: u64,
}

/// What was allocated at one stack.
#[derive(Clone, Debug)]
pub struct RawStack {
    /// The rate of its samples.
    pub rate: u64,
    /// Bytes of an object, rounded up.
    pub size: u64,
    /// The threads' name; empty if it is not known.
    pub thread: String,
    /// Return addresses, the innermost first.
    pub frames: Vec<u64>,
    /// Sampled objects and their bytes: live, allocated, at the peak.
    pub samples: [(u64, u64); 3],
    /// Freed samples by lifetime.
    pub lifetimes: [u64; LIFETIMES],
}

/// Why bytes are no profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// They do not begin as one.
    NoProfile,
    /// They have another version.
    Version(u64),
    /// They end early.
    Short,
}

/// The first words of an area.
pub fn area(bytes: &[u8]) -> Result<Area, Bad> {
    let words = words_of(bytes);
    match words[..] {
        [layout::MAGIC, layout::VERSION, ..] if words.len() >= Area::COUNT => {
            Ok(Area::from_words(|at| words[at]))
        }
        [layout::MAGIC, version, ..] if version != layout::VERSION => Err(Bad::Version(version)),
        [layout::MAGIC, ..] => Err(Bad::Short),
        _ => Err(Bad::NoProfile),
    }
}

impl Raw {
    /// Parses the used part of an area, or its beginning.
    pub fn parse(bytes: &[u8]) -> Result<Self, Bad> {
        let area = area(bytes)?;
        let stacks = bytes.get(layout::STACKS_BYTES..).ok_or(Bad::Short)?;
        let stacks = stacks.chunks_exact(layout::STACK_BYTES);
        Ok(Self {
            stacks: stacks
                .take(area.stacks as usize)
                .filter_map(|bytes| stack(bytes, &area))
                .collect(),
            area,
            ..Self::default()
        })
    }

    /// Parses the file of a dump.
    pub fn parse_dump(bytes: &[u8]) -> Result<Self, Bad> {
        let words = words_of(&bytes[..bytes.len().min(layout::FILE_BYTES)]);
        match words[..] {
            [layout::FILE_MAGIC, layout::VERSION, ..] if words.len() >= File::COUNT => {}
            [layout::FILE_MAGIC, version, ..] if version != layout::VERSION => {
                return Err(Bad::Version(version));
            }
            [layout::FILE_MAGIC, ..] => return Err(Bad::Short),
            _ => return Err(Bad::NoProfile),
        }
        let file = File::from_words(|at| words[at]);
        let area_end = (file.area_bytes as usize).saturating_add(layout::FILE_BYTES);
        let maps_end = area_end.saturating_add(file.maps_bytes as usize);
        let area = bytes.get(layout::FILE_BYTES..area_end).ok_or(Bad::Short)?;
        let maps = bytes.get(area_end..maps_end).ok_or(Bad::Short)?;
        Ok(Self {
            mappings: smaps::parse(&String::from_utf8_lossy(maps)),
            program: name(file.name_low, file.name_high),
            pid: file.pid,
            time_ns: file.time_ns,
            unix_ns: file.unix_ns,
            ..Self::parse(area)?
        })
    }

    /// Takes away what was allocated and freed before `start`, an earlier snapshot.
    pub fn subtract(&mut self, start: &Self) {
        for (now, then) in self.stacks.iter_mut().zip(&start.stacks) {
            let (objects, bytes) = &mut now.samples[1];
            *objects = objects.saturating_sub(then.samples[1].0);
            *bytes = bytes.saturating_sub(then.samples[1].1);
            for (now, then) in now.lifetimes.iter_mut().zip(then.lifetimes) {
                *now = now.saturating_sub(then);
            }
        }
        self.area.begun_ns = self.area.begun_ns.max(start.time_ns);
    }

    /// The rate of the samples: of the newest stacks, if sampling is off now.
    pub fn rate(&self) -> u64 {
        match (self.area.rate, self.stacks.last()) {
            (0, Some(last)) => last.rate,
            (rate, _) => rate,
        }
    }

    /// How stacks were found.
    pub fn unwinder(&self) -> Unwinder {
        Unwinder::of(self.area.unwinder).unwrap_or(Unwinder::None)
    }
}

/// A stack, if its words are possible.
fn stack(bytes: &[u8], area: &Area) -> Option<RawStack> {
    let words = words_of(bytes);
    let about = Stack::from_words(|at| words[at]);
    let frames = words.get(layout::FRAMES_AT / 8..)?;
    let lifetimes = words.get(layout::LIFETIMES_AT / 8..)?.first_chunk()?;
    let live = (about.live_objects, about.live_bytes);
    let peak = match about.peak == area.peak {
        true => (about.peak_objects, about.peak_bytes),
        false => live,
    };
    let is_possible = about.rate > 0
        && (1..=MAX_CLASS).contains(&about.class)
        && about.frames <= MAX_FRAMES as u64;
    is_possible.then(|| RawStack {
        rate: about.rate,
        size: class_bytes(about.class as usize) as u64,
        thread: name(about.name_low, about.name_high),
        frames: frames[..about.frames as usize].to_vec(),
        samples: [live, (about.total_objects, about.total_bytes), peak],
        lifetimes: *lifetimes,
    })
}

/// A name in two words, made printable.
fn name(low: u64, high: u64) -> String {
    let bytes = [low.to_le_bytes(), high.to_le_bytes()].concat();
    let name = bytes.split(|&byte| byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(name).replace(char::is_control, "?")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(name: &str) -> (u64, u64) {
        let mut bytes = [0; 16];
        bytes[..name.len()].copy_from_slice(name.as_bytes());
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        (word(0), word(8))
    }

    fn area_bytes(area: Area, stacks: &[(Stack, &[u64])]) -> Vec<u8> {
        let mut words = area.words().to_vec();
        words.resize(layout::STACKS_BYTES / 8, 0);
        for (stack, frames) in stacks {
            let at = words.len();
            words.extend(stack.words());
            words.extend([0; LIFETIMES]);
            words[at + Stack::COUNT + 3] = 9;
            words.extend(*frames);
            words.resize(at + layout::STACK_BYTES / 8, 0);
        }
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn example() -> Vec<u8> {
        let area = Area {
            magic: layout::MAGIC,
            version: layout::VERSION,
            stacks: 2,
            peak: 5,
            unwinder: Unwinder::Tables as u64,
            ..Area::default()
        };
        let (name_low, name_high) = words("worker-#");
        let stack = Stack {
            rate: 512 << 10,
            class: 9,
            frames: 2,
            name_low,
            name_high,
            live_objects: 3,
            live_bytes: 400,
            total_objects: 12,
            total_bytes: 1600,
            peak: 5,
            peak_objects: 4,
            peak_bytes: 530,
            ..Stack::default()
        };
        let unchanged = Stack { peak: 4, ..stack };
        let frames: &[u64] = &[0x1005, 0x2005];
        area_bytes(area, &[(stack, frames), (unchanged, frames)])
    }

    #[test]
    fn an_area_has_stacks() {
        let raw = Raw::parse(&example()).unwrap();
        assert_eq!((raw.rate(), raw.unwinder()), (512 << 10, Unwinder::Tables));
        let stack = &raw.stacks[0];
        assert_eq!((stack.size, stack.thread.as_str()), (144, "worker-#"));
        assert_eq!(stack.frames, [0x1005, 0x2005]);
        assert_eq!(stack.samples, [(3, 400), (12, 1600), (4, 530)]);
        assert_eq!(stack.lifetimes[3], 9);
        // It has not changed since the peak.
        assert_eq!(raw.stacks[1].samples[2], (3, 400));
    }

    #[test]
    fn a_dump_has_mappings_too() {
        let area = example();
        let maps = "1000-3000 r-xp 00004000 08:01 7 /bin/demo\n";
        let (name_low, name_high) = words("demo");
        let file = File {
            magic: layout::FILE_MAGIC,
            version: layout::VERSION,
            area_bytes: area.len() as u64,
            maps_bytes: maps.len() as u64,
            pid: 77,
            name_low,
            name_high,
            time_ns: 8,
            unix_ns: 9,
        };
        let mut bytes: Vec<u8> = file.words().iter().flat_map(|w| w.to_le_bytes()).collect();
        bytes.resize(layout::FILE_BYTES, 0);
        bytes.extend(area);
        bytes.extend(maps.bytes());
        let raw = Raw::parse_dump(&bytes).unwrap();
        assert_eq!(
            (raw.program.as_str(), raw.pid, raw.unix_ns),
            ("demo", 77, 9)
        );
        assert_eq!((raw.mappings[0].offset, raw.stacks.len()), (0x4000, 2));
        bytes.pop();
        assert_eq!(Raw::parse_dump(&bytes).unwrap_err(), Bad::Short);
        bytes[8] = 2;
        assert_eq!(Raw::parse_dump(&bytes).unwrap_err(), Bad::Version(2));
        bytes[0] = 0;
        assert_eq!(Raw::parse_dump(&bytes).unwrap_err(), Bad::NoProfile);
    }

    #[test]
    fn a_time_begins_at_a_snapshot() {
        let mut now = Raw::parse(&example()).unwrap();
        let mut start = now.clone();
        start.stacks.pop();
        start.stacks[0].samples[1] = (2, 300);
        start.stacks[0].lifetimes[3] = 4;
        start.time_ns = 70;
        now.subtract(&start);
        assert_eq!(now.stacks[0].samples, [(3, 400), (10, 1300), (4, 530)]);
        assert_eq!((now.stacks[0].lifetimes[3], now.area.begun_ns), (5, 70));
        // It is new.
        assert_eq!(now.stacks[1].samples[1], (12, 1600));
    }

    #[test]
    fn impossible_words_are_left_out() {
        let mut bytes = example();
        let class = layout::STACKS_BYTES + std::mem::offset_of!(Stack, class);
        bytes[class + 7] = 1;
        assert_eq!(Raw::parse(&bytes).unwrap().stacks.len(), 1);
        bytes.truncate(layout::STACKS_BYTES + 100);
        assert_eq!(Raw::parse(&bytes).unwrap().stacks.len(), 0);
        bytes.truncate(layout::STACKS_BYTES - 1);
        assert_eq!(Raw::parse(&bytes).unwrap_err(), Bad::Short);
        assert_eq!(area(&bytes[..20]).unwrap_err(), Bad::Short);
        assert_eq!(area(&[]).unwrap_err(), Bad::NoProfile);
    }
}
