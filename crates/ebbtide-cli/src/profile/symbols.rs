//! Names the addresses of a profile: functions, also inlined ones, files and lines.
//!
//! A file is opened as the process sees it (`/proc/PID/root`), else by its path here. Debug information may lie in the file, or in another one
//! that is found by build id or debug link.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use blazesym::helper::read_elf_build_id;
use blazesym::symbolize::source::{Elf, Source};
use blazesym::symbolize::{CodeInfo, Input, Sym, Symbolizer};

use super::model::{Amount, Line, Location, Mapping, Profile, Stack};
use super::raw::{Raw, RawStack};
use crate::smaps;

const DEBUG_DIR: &str = "/usr/lib/debug";
const DELETED: &str = " (deleted)";

/// The profile with names. What could not be found is said in `notes`. A process that has ended has no `pid`.
pub fn name(raw: &Raw, pid: Option<u32>, notes: &mut Vec<String>) -> Profile {
    let files: Vec<&smaps::Mapping> = raw
        .mappings
        .iter()
        .filter(|it| it.path.starts_with('/'))
        .collect();
    let mut profile = Profile {
        process: format!("{}[{}]", raw.program, raw.pid),
        rate: raw.rate(),
        time_ns: raw.unix_ns,
        duration_ns: raw.time_ns.saturating_sub(raw.area.begun_ns),
        dropped: raw.area.dropped + raw.area.missed,
        mappings: files.iter().map(|file| mapping(file)).collect(),
        ..Profile::default()
    };
    let mut known = HashMap::new();
    for stack in &raw.stacks {
        let locations = stack.frames.iter().map(|&frame| {
            // The call ends before the address to which it returns.
            let address = frame.saturating_sub(1);
            *known.entry(address).or_insert_with(|| {
                let mapping = files
                    .iter()
                    .position(|it| (it.start..it.end).contains(&address));
                profile.locations.push(Location {
                    address,
                    mapping,
                    lines: Vec::new(),
                });
                profile.locations.len() - 1
            })
        });
        let locations = locations.collect();
        profile.stacks.push(estimated(stack, locations));
    }
    let symbols = Symbols {
        pid,
        taken: UNIX_EPOCH + Duration::from_nanos(raw.unix_ns),
        symbolizer: symbolizer(pid),
    };
    let mut by_path: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (at, location) in profile.locations.iter().enumerate() {
        if let Some(mapping) = location.mapping {
            by_path.entry(&files[mapping].path).or_default().push(at);
        }
    }
    for (path, places) in by_path {
        let offset = |place: &usize| {
            let Location {
                address, mapping, ..
            } = profile.locations[*place];
            let mapping = files[mapping.expect("a place in this file")];
            address - mapping.start + mapping.offset
        };
        let offsets: Vec<u64> = places.iter().map(offset).collect();
        let mapped = files.iter().find(|it| it.path == path);
        match symbols.find(mapped.expect("a mapped file"), &offsets) {
            Ok(named) => {
                for (place, lines) in places.iter().zip(named.lines) {
                    profile.locations[*place].lines = lines;
                }
                for mapping in &mut profile.mappings {
                    if mapping.path == path.trim_end_matches(DELETED) {
                        mapping.build_id.clone_from(&named.build_id);
                    }
                }
                notes.extend(named.note);
            }
            Err(why) => notes.push(format!(
                "{path}: {why}; its functions are shown as addresses"
            )),
        }
    }
    profile
}

fn mapping(file: &smaps::Mapping) -> Mapping {
    Mapping {
        start: file.start,
        end: file.end,
        offset: file.offset,
        path: file.path.trim_end_matches(DELETED).into(),
        build_id: String::new(),
    }
}

/// A stack with estimates in place of samples.
fn estimated(stack: &RawStack, locations: Vec<usize>) -> Stack {
    let amounts = stack
        .samples
        .map(|(samples, bytes)| Amount::of_samples(samples, bytes, stack.rate));
    let (samples, _) = stack.samples[1];
    let weight = amounts[1].objects / samples.max(1) as f64;
    let freed = stack.lifetimes.iter();
    Stack {
        locations,
        size: stack.size,
        thread: stack.thread.clone(),
        amounts,
        lifetimes: freed.map(|&samples| samples as f64 * weight).collect(),
    }
}

fn symbolizer(pid: Option<u32>) -> Symbolizer {
    let inside = pid.map(|pid| format!("/proc/{pid}/root{DEBUG_DIR}"));
    let dirs = inside.into_iter().chain([DEBUG_DIR.into()]);
    Symbolizer::builder().set_debug_dirs(Some(dirs)).build()
}

struct Symbols {
    pid: Option<u32>,
    taken: std::time::SystemTime,
    symbolizer: Symbolizer,
}

/// The names in one file.
struct Named {
    /// One entry an address; empty where none is known.
    lines: Vec<Vec<Line>>,
    build_id: String,
    note: Option<String>,
}

impl Symbols {
    fn find(&self, mapped: &smaps::Mapping, offsets: &[u64]) -> Result<Named, String> {
        let file = self.open(mapped)?;
        let source = Source::Elf(Elf::new(&file));
        let found = self
            .symbolizer
            .symbolize(&source, Input::FileOffset(offsets))
            .map_err(|error| format!("its symbols cannot be read ({error:#})"))?;
        let lines: Vec<Vec<Line>> = found
            .iter()
            .map(|place| place.as_sym().map_or(Vec::new(), lines))
            .collect();
        let build_id = read_elf_build_id(&file).ok().flatten();
        let build_id = build_id.map_or(String::new(), |id| {
            id.iter().map(|byte| format!("{byte:02x}")).collect()
        });
        let note = match lines.iter().all(Vec::is_empty) {
            true => Some(format!(
                "{} has no symbols: install those of its package (Debian: a package NAME-dbgsym), or build it with -g",
                mapped.path
            )),
            false => self.newer(&file).then(|| {
                format!(
                    "{} is newer than the profile: names of its functions may be wrong",
                    mapped.path
                )
            }),
        };
        Ok(Named {
            lines,
            build_id,
            note,
        })
    }

    /// The path at which a mapped file can be read.
    fn open(&self, mapped: &smaps::Mapping) -> Result<PathBuf, String> {
        let path = mapped.path.trim_end_matches(DELETED);
        let is_deleted = path.len() < mapped.path.len();
        let mut places = Vec::new();
        if let Some(pid) = self.pid {
            // The kernel gives it to root only.
            let range = format!("{:x}-{:x}", mapped.start, mapped.end);
            match is_deleted {
                true => places.push(format!("/proc/{pid}/map_files/{range}")),
                false => places.push(format!("/proc/{pid}/root{path}")),
            }
        }
        if !is_deleted {
            places.push(path.into());
        }
        let mut why = String::from(
            "the file was replaced or removed after the process had started; only root can read the old one",
        );
        for place in places {
            match fs::File::open(&place) {
                Ok(_) => return Ok(place.into()),
                Err(error) if is_deleted => why = format!("{why} ({error})"),
                Err(error) => {
                    why = format!("{error}; read the profile where this file is readable");
                }
            }
        }
        Err(why)
    }

    /// Whether the file was written after the profile.
    fn newer(&self, file: &Path) -> bool {
        let written = fs::metadata(file).and_then(|about| about.modified());
        written.is_ok_and(|written| written > self.taken)
    }
}

/// The functions at a place, the innermost first.
fn lines(sym: &Sym<'_>) -> Vec<Line> {
    let inlined = sym.inlined.iter().rev();
    let inlined = inlined.map(|inner| line(&inner.name, inner.code_info.as_ref()));
    inlined
        .chain([line(&sym.name, sym.code_info.as_deref())])
        .collect()
}

fn line(function: &str, place: Option<&CodeInfo<'_>>) -> Line {
    Line {
        function: function.into(),
        file: place.map_or(String::new(), |place| place.to_path().display().to_string()),
        line: place.and_then(|place| place.line).unwrap_or(0),
    }
}

#[cfg(test)]
mod tests;
