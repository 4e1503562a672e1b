//! A profile: stacks with names, and what was allocated there, as estimates.
//!
//! A sample of `s` bytes was chosen with the probability `p = 1 - exp(-s / rate)`, so it stands for `1 / p` objects. The sampling error of a
//! sum is the root of the sum of `s² (1 - p) / p²` over its samples.

use std::collections::HashMap;
use std::ops::{AddAssign, Neg};

/// What is counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum View {
    /// Objects that are not freed.
    Live,
    /// All objects since sampling began, freed or not.
    Allocated,
    /// Objects that were live at the highest total.
    Peak,
}

impl View {
    /// All views, in the order of [`Stack::amounts`].
    pub const ALL: [Self; 3] = [Self::Live, Self::Allocated, Self::Peak];
}

/// An estimate of objects and their bytes. It is negative if a difference is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Amount {
    /// Objects.
    pub objects: f64,
    /// Their bytes, as the program asked for them.
    pub bytes: f64,
    /// The square of the sampling error of `bytes`.
    pub variance: f64,
}

impl Amount {
    /// The estimate from samples of about the same size.
    pub fn of_samples(samples: u64, bytes: u64, rate: u64) -> Self {
        if samples == 0 {
            return Self::default();
        }
        let weight = 1.0 / probability(bytes as f64 / samples as f64, rate);
        Self::of_estimate(samples as f64 * weight, bytes as f64 * weight, rate)
    }

    /// From objects and bytes that were estimated earlier.
    pub fn of_estimate(objects: f64, bytes: f64, rate: u64) -> Self {
        if objects == 0.0 {
            return Self::default();
        }
        let size = bytes / objects;
        let p = probability(size, rate);
        let variance = objects.abs() * size * size * (1.0 - p) / p;
        Self {
            objects,
            bytes,
            variance,
        }
    }

    /// The sampling error of `bytes`: one standard deviation.
    pub fn error(&self) -> f64 {
        self.variance.sqrt()
    }
}

/// The probability that an object of this size is sampled.
fn probability(size: f64, rate: u64) -> f64 {
    -(-size.max(1.0) / rate.max(1) as f64).exp_m1()
}

impl AddAssign for Amount {
    fn add_assign(&mut self, other: Self) {
        self.objects += other.objects;
        self.bytes += other.bytes;
        self.variance += other.variance;
    }
}

impl Neg for Amount {
    type Output = Self;

    fn neg(self) -> Self {
        Self {
            objects: -self.objects,
            bytes: -self.bytes,
            variance: self.variance,
        }
    }
}

/// A mapped file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// The first address.
    pub start: u64,
    /// The address behind the last byte.
    pub end: u64,
    /// Where the first byte is in the file.
    pub offset: u64,
    /// The file, as the process sees it.
    pub path: String,
    /// The file's build id in hexadecimal digits; empty if it has none.
    pub build_id: String,
}

impl Mapping {
    /// The last part of the path.
    pub fn file_name(&self) -> &str {
        self.path.rsplit('/').next().unwrap_or_default()
    }
}

/// A function, and the line in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Line {
    /// The function, demangled; an address in a file if it is not known.
    pub function: String,
    /// The source file; empty if it is not known.
    pub file: String,
    /// The line in it; 0 if it is not known.
    pub line: u32,
}

impl Line {
    /// In one word, with the file's name but not its directory.
    pub fn shown(&self) -> String {
        let file = self.file.rsplit('/').next().unwrap_or_default();
        match (file, self.line) {
            ("", _) => self.function.clone(),
            (_, 0) => format!("{} ({file})", self.function),
            (_, line) => format!("{} ({file}:{line})", self.function),
        }
    }
}

/// A place in the code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// The address in the process, of the call.
    pub address: u64,
    /// Its mapping, as an index.
    pub mapping: Option<usize>,
    /// The function, and before it those that were inlined into it. Empty: not known.
    pub lines: Vec<Line>,
}

/// What was allocated at one stack, in objects of about the same size.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Stack {
    /// The calls as indexes of locations, the innermost first.
    pub locations: Vec<usize>,
    /// Bytes of an object.
    pub size: u64,
    /// The name of the thread that allocated; empty if it is not known.
    pub thread: String,
    /// Estimates, by [`View`].
    pub amounts: [Amount; View::ALL.len()],
    /// Freed objects by their lifetime, in the buckets of [`ebbtide_interface::profile::LIFETIMES`]; empty if it is not known.
    pub lifetimes: Vec<f64>,
}

/// The whole profile.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Profile {
    /// The process, such as `redis-server[42]`.
    pub process: String,
    /// Bytes between two samples, on average.
    pub rate: u64,
    /// When it was taken, in nanoseconds since 1970.
    pub time_ns: u64,
    /// How long samples had been taken then.
    pub duration_ns: u64,
    /// Samples that were lost: no room for their stack, or for their object.
    pub dropped: u64,
    /// Mapped files.
    pub mappings: Vec<Mapping>,
    /// Places in the code.
    pub locations: Vec<Location>,
    /// Stacks.
    pub stacks: Vec<Stack>,
}

impl Profile {
    /// The functions of a stack, the innermost first.
    pub fn lines<'a>(&'a self, stack: &'a Stack) -> impl DoubleEndedIterator<Item = Line> + 'a {
        let locations = stack.locations.iter().map(|&at| &self.locations[at]);
        locations.flat_map(|location| match location.lines.is_empty() {
            false => location.lines.clone(),
            true => vec![self.address(location)],
        })
    }

    /// The name of a place whose function is not known.
    fn address(&self, location: &Location) -> Line {
        let mapping = location.mapping.map(|at| &self.mappings[at]);
        let function = match mapping {
            Some(mapping) => format!(
                "{}+{:#x}",
                mapping.file_name(),
                location.address - mapping.start + mapping.offset
            ),
            None => format!("{:#x}", location.address),
        };
        Line {
            function,
            file: String::new(),
            line: 0,
        }
    }

    /// The sum over all stacks.
    pub fn total(&self, view: View) -> Amount {
        let mut total = Amount::default();
        let amounts = self.stacks.iter().map(|stack| stack.amounts[view as usize]);
        amounts.for_each(|amount| total += amount);
        total
    }

    /// This profile without what an older one has. Stacks are the same if their functions, lines, threads and sizes are: another run has other
    /// addresses.
    pub fn without(mut self, old: &Profile) -> Profile {
        let mut index: HashMap<Key, usize> = HashMap::new();
        for (at, stack) in self.stacks.iter().enumerate() {
            index.entry(self.key(stack)).or_insert(at);
        }
        let locations = self.locations.len();
        let mappings = self.mappings.len();
        for stack in &old.stacks {
            let at = *index.entry(old.key(stack)).or_insert_with(|| {
                self.stacks.push(Stack {
                    locations: stack.locations.iter().map(|at| at + locations).collect(),
                    amounts: Default::default(),
                    lifetimes: Vec::new(),
                    ..stack.clone()
                });
                self.stacks.len() - 1
            });
            for (new, old) in self.stacks[at].amounts.iter_mut().zip(stack.amounts) {
                *new += -old;
            }
            let lifetimes = self.stacks[at].lifetimes.iter_mut();
            lifetimes
                .zip(&stack.lifetimes)
                .for_each(|(new, old)| *new -= old);
        }
        self.mappings.extend(old.mappings.iter().cloned());
        self.locations
            .extend(old.locations.iter().map(|location| Location {
                mapping: location.mapping.map(|at| at + mappings),
                ..location.clone()
            }));
        self
    }

    fn key(&self, stack: &Stack) -> Key {
        (
            self.lines(stack).collect(),
            stack.thread.clone(),
            stack.size,
        )
    }
}

/// What makes stacks of two profiles the same.
type Key = (Vec<Line>, String, u64);

/// Functions that only pass a request on: the place that allocated is their caller.
const PASSING: [&str; 18] = [
    "operator new",
    "__gnu_cxx::new_allocator<",
    "__gnu_cxx::__aligned_",
    "std::__new_allocator<",
    "std::allocator<",
    "std::allocator_traits<",
    "__rust_alloc",
    "__rust_realloc",
    "__rdl_",
    "__rustc::__r",
    "__rustc[",
    "alloc::alloc::",
    "<alloc::alloc::Global",
    "alloc::raw_vec::",
    "alloc::boxed::Box<T>::new",
    "g_malloc",
    "g_realloc",
    "<ebbtide::Ebbtide as",
];

/// Containers of the languages' libraries: the place that allocated is their user.
const CONTAINERS: [&str; 11] = [
    "std::",
    "void std::",
    "__gnu_cxx::",
    "alloc::",
    "core::",
    "hashbrown::",
    "<alloc::",
    "<core::",
    "<hashbrown::",
    "<std::",
    "<T as alloc::",
];

/// Whether a function asks for memory only for its caller.
pub fn is_passing(function: &str) -> bool {
    let mut prefixes = PASSING.iter().chain(&CONTAINERS);
    prefixes.any(|prefix| function.starts_with(prefix))
}

/// For readers of pprof files, a regular expression for whole names. They drop also all that such a function calls, so it has no containers, which
/// may call the program.
pub fn passing_pattern() -> String {
    let quoted = PASSING.map(|prefix| prefix.replace('[', "\\["));
    format!("({}).*", quoted.join("|"))
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub const RATE: u64 = 1 << 19;

    /// A profile with the functions of each stack, the innermost first, its size, and its samples by view.
    pub fn profile(stacks: &[(&[&str], u64, [u64; 3])]) -> Profile {
        let mut profile = Profile {
            process: "test[7]".into(),
            rate: RATE,
            time_ns: 1,
            ..Profile::default()
        };
        for &(names, size, samples) in stacks {
            let first = profile.locations.len();
            for (at, name) in names.iter().enumerate() {
                profile.locations.push(Location {
                    address: 0x1000 + (first + at) as u64,
                    mapping: None,
                    lines: vec![Line {
                        function: (*name).into(),
                        file: "/src/test.c".into(),
                        line: 3,
                    }],
                });
            }
            profile.stacks.push(Stack {
                locations: (first..profile.locations.len()).collect(),
                size,
                thread: "main".into(),
                amounts: samples.map(|n| Amount::of_samples(n, n * size, RATE)),
                lifetimes: Vec::new(),
            });
        }
        profile
    }

    #[test]
    fn a_sample_stands_for_what_was_not_sampled() {
        let small = Amount::of_samples(100, 100 * 1024, RATE);
        // Rare enough that each stands for the rate and half its size.
        let expected = 100.0 * (RATE as f64 + 512.0);
        assert!((small.bytes - expected).abs() < 20.0, "{}", small.bytes);
        assert!((small.objects - expected / 1024.0).abs() < 0.1);
        // A hundred samples: a tenth.
        let error = small.error() / small.bytes;
        assert!((0.099..0.101).contains(&error), "{error}");
        // What is far larger than the rate is always sampled.
        let large = Amount::of_samples(3, 3 << 30, RATE);
        assert_eq!((large.objects, large.bytes), (3.0, (3u64 << 30) as f64));
        assert!(large.error() < 1.0);
        assert_eq!(Amount::of_samples(0, 0, RATE), Amount::default());
    }

    #[test]
    fn a_stored_estimate_has_the_same_error() {
        let first = Amount::of_samples(7, 7 * 300_000, RATE);
        let again = Amount::of_estimate(first.objects, first.bytes, RATE);
        assert!((first.variance - again.variance).abs() < 1e-6 * first.variance);
    }

    #[test]
    fn a_difference_goes_by_names() {
        let old = profile(&[
            (&["keep", "main"], 1024, [10, 20, 10]),
            (&["gone", "main"], 64, [4, 4, 4]),
        ]);
        // Another order, so other addresses.
        let new = profile(&[
            (&["fresh", "main"], 32, [2, 2, 2]),
            (&["keep", "main"], 1024, [15, 25, 15]),
        ]);
        let change = new.without(&old);
        let shown = |name: &str| {
            let named = |stack: &&Stack| change.lines(stack).next().unwrap().function == name;
            let stack = change.stacks.iter().find(named).unwrap();
            (stack.amounts[0].bytes / RATE as f64).round()
        };
        assert_eq!(change.stacks.len(), 3);
        assert_eq!(
            (shown("keep"), shown("gone"), shown("fresh")),
            (5.0, -4.0, 2.0)
        );
        // Errors of both add up.
        let error = change.total(View::Live).error() / RATE as f64;
        assert!((error - f64::sqrt(31.0)).abs() < 0.1, "{error}");
    }

    #[test]
    fn callers_of_operator_new_allocate() {
        assert!(is_passing("operator new(unsigned long)") && is_passing("g_malloc0"));
        assert!(is_passing("alloc::raw_vec::finish_grow") && !is_passing("main"));
        assert!(is_passing("std::vector<int>::push_back(int&&)"));
        assert!(!passing_pattern().contains("std::|"));
        assert!(passing_pattern().starts_with("(operator new|"));
    }
}
