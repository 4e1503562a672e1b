//! pprof's format: a protobuf message, compressed with gzip.
//!
//! The messages are those of <https://github.com/google/pprof/blob/main/proto/profile.proto>. Strings, functions, locations and mappings are
//! tables; number 0 of the strings is empty, the other numbers begin with 1.

use std::collections::HashMap;
use std::io::{Read, Write};

use anyhow::{Context, Result, bail};
use flate2::Compression;
use flate2::read::GzDecoder;
use flate2::write::GzEncoder;
use prost::Message;

use super::model::{self, Amount, Profile, View, passing_pattern};

/// The bytes that every gzip file begins with.
pub const GZIP: [u8; 2] = [0x1f, 0x8b];

/// Label of a sample: the thread's name.
const THREAD: &str = "thread";
/// Label of a sample, and unit: the bytes of an object.
const BYTES: &str = "bytes";
const COUNT: &str = "count";
const SPACE: &str = "space";

mod proto {
    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Profile {
        #[prost(message, repeated, tag = "1")]
        pub sample_type: Vec<ValueType>,
        #[prost(message, repeated, tag = "2")]
        pub sample: Vec<Sample>,
        #[prost(message, repeated, tag = "3")]
        pub mapping: Vec<Mapping>,
        #[prost(message, repeated, tag = "4")]
        pub location: Vec<Location>,
        #[prost(message, repeated, tag = "5")]
        pub function: Vec<Function>,
        #[prost(string, repeated, tag = "6")]
        pub string_table: Vec<String>,
        #[prost(int64, tag = "7")]
        pub drop_frames: i64,
        #[prost(int64, tag = "9")]
        pub time_nanos: i64,
        #[prost(int64, tag = "10")]
        pub duration_nanos: i64,
        #[prost(message, optional, tag = "11")]
        pub period_type: Option<ValueType>,
        #[prost(int64, tag = "12")]
        pub period: i64,
        #[prost(int64, repeated, tag = "13")]
        pub comment: Vec<i64>,
        #[prost(int64, tag = "14")]
        pub default_sample_type: i64,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct ValueType {
        #[prost(int64, tag = "1")]
        pub kind: i64,
        #[prost(int64, tag = "2")]
        pub unit: i64,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Sample {
        #[prost(uint64, repeated, tag = "1")]
        pub location_id: Vec<u64>,
        #[prost(int64, repeated, tag = "2")]
        pub value: Vec<i64>,
        #[prost(message, repeated, tag = "3")]
        pub label: Vec<Label>,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Label {
        #[prost(int64, tag = "1")]
        pub key: i64,
        #[prost(int64, tag = "2")]
        pub str: i64,
        #[prost(int64, tag = "3")]
        pub num: i64,
        #[prost(int64, tag = "4")]
        pub num_unit: i64,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Mapping {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(uint64, tag = "2")]
        pub memory_start: u64,
        #[prost(uint64, tag = "3")]
        pub memory_limit: u64,
        #[prost(uint64, tag = "4")]
        pub file_offset: u64,
        #[prost(int64, tag = "5")]
        pub filename: i64,
        #[prost(int64, tag = "6")]
        pub build_id: i64,
        #[prost(bool, tag = "7")]
        pub has_functions: bool,
        #[prost(bool, tag = "8")]
        pub has_filenames: bool,
        #[prost(bool, tag = "9")]
        pub has_line_numbers: bool,
        #[prost(bool, tag = "10")]
        pub has_inline_frames: bool,
    }

    #[derive(Clone, PartialEq, prost::Message)]
    pub struct Location {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(uint64, tag = "2")]
        pub mapping_id: u64,
        #[prost(uint64, tag = "3")]
        pub address: u64,
        #[prost(message, repeated, tag = "4")]
        pub line: Vec<Line>,
    }

    #[derive(Clone, Copy, PartialEq, prost::Message)]
    pub struct Line {
        #[prost(uint64, tag = "1")]
        pub function_id: u64,
        #[prost(int64, tag = "2")]
        pub line: i64,
    }

    #[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
    pub struct Function {
        #[prost(uint64, tag = "1")]
        pub id: u64,
        #[prost(int64, tag = "2")]
        pub name: i64,
        #[prost(int64, tag = "3")]
        pub system_name: i64,
        #[prost(int64, tag = "4")]
        pub filename: i64,
    }
}

/// The table of strings, while a file is written.
struct Strings(HashMap<String, i64>);

impl Strings {
    fn number(&mut self, text: &str) -> i64 {
        let next = self.0.len() as i64;
        *self.0.entry(text.into()).or_insert(next)
    }

    fn value_type(&mut self, kind: &str, unit: &str) -> proto::ValueType {
        proto::ValueType {
            kind: self.number(kind),
            unit: self.number(unit),
        }
    }

    fn table(self) -> Vec<String> {
        let mut all: Vec<(String, i64)> = self.0.into_iter().collect();
        all.sort_by_key(|&(_, number)| number);
        all.into_iter().map(|(text, _)| text).collect()
    }
}

/// The names of a view's two values: objects, bytes.
fn names(view: View) -> [&'static str; 2] {
    match view {
        View::Live => ["inuse_objects", "inuse_space"],
        View::Allocated => ["alloc_objects", "alloc_space"],
        View::Peak => ["peak_objects", "peak_space"],
    }
}

/// The file for a profile. Readers show `view` first.
pub fn write(profile: &Profile, view: View) -> Vec<u8> {
    let mut strings = Strings(HashMap::from([(String::new(), 0)]));
    let sample_type = View::ALL
        .into_iter()
        .flat_map(names)
        .zip([COUNT, BYTES].into_iter().cycle());
    let sample_type = sample_type
        .map(|(kind, unit)| strings.value_type(kind, unit))
        .collect();
    let mut file = proto::Profile {
        sample_type,
        drop_frames: strings.number(&passing_pattern()),
        time_nanos: profile.time_ns as i64,
        duration_nanos: profile.duration_ns as i64,
        period_type: Some(strings.value_type(SPACE, BYTES)),
        period: profile.rate as i64,
        comment: vec![strings.number(&profile.process)],
        default_sample_type: strings.number(names(view)[1]),
        ..proto::Profile::default()
    };
    for (at, mapping) in profile.mappings.iter().enumerate() {
        let of_it = profile.locations.iter().filter(|it| it.mapping == Some(at));
        let mut lines = of_it.clone().flat_map(|it| &it.lines);
        file.mapping.push(proto::Mapping {
            id: at as u64 + 1,
            memory_start: mapping.start,
            memory_limit: mapping.end,
            file_offset: mapping.offset,
            filename: strings.number(&mapping.path),
            build_id: strings.number(&mapping.build_id),
            has_functions: lines.clone().next().is_some(),
            has_filenames: lines.clone().any(|line| !line.file.is_empty()),
            has_line_numbers: lines.any(|line| line.line > 0),
            has_inline_frames: of_it.clone().any(|it| it.lines.len() > 1),
        });
    }
    let mut functions: HashMap<(&str, &str), u64> = HashMap::new();
    for (at, location) in profile.locations.iter().enumerate() {
        let lines = location.lines.iter().map(|line| {
            let next = functions.len() as u64 + 1;
            let key = (line.function.as_str(), line.file.as_str());
            let id = *functions.entry(key).or_insert_with(|| {
                let name = strings.number(&line.function);
                file.function.push(proto::Function {
                    id: next,
                    name,
                    system_name: name,
                    filename: strings.number(&line.file),
                });
                next
            });
            proto::Line {
                function_id: id,
                line: line.line.into(),
            }
        });
        let line = lines.collect();
        file.location.push(proto::Location {
            id: at as u64 + 1,
            mapping_id: location.mapping.map_or(0, |at| at as u64 + 1),
            address: location.address,
            line,
        });
    }
    for stack in &profile.stacks {
        let values = stack.amounts.iter();
        let values = values.flat_map(|it| [it.objects, it.bytes].map(|n| n.round() as i64));
        let mut label = vec![proto::Label {
            key: strings.number(BYTES),
            num: stack.size as i64,
            num_unit: strings.number(BYTES),
            str: 0,
        }];
        if !stack.thread.is_empty() {
            label.push(proto::Label {
                key: strings.number(THREAD),
                str: strings.number(&stack.thread),
                ..proto::Label::default()
            });
        }
        file.sample.push(proto::Sample {
            location_id: stack.locations.iter().map(|at| *at as u64 + 1).collect(),
            value: values.collect(),
            label,
        });
    }
    file.string_table = strings.table();
    let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
    gzip.write_all(&file.encode_to_vec())
        .and_then(|()| gzip.finish())
        .expect("memory takes all bytes")
}

/// Reads a file that this or another program has written.
pub fn read(bytes: &[u8]) -> Result<Profile> {
    let mut plain = Vec::new();
    GzDecoder::new(bytes)
        .read_to_end(&mut plain)
        .context("it is cut short or damaged")?;
    let file = proto::Profile::decode(&*plain).context("it is no pprof file")?;
    let text = |number: i64| -> String {
        let text = usize::try_from(number).ok();
        let text = text.and_then(|number| file.string_table.get(number));
        text.cloned().unwrap_or_default()
    };
    let place =
        |view| names(view).map(|name| file.sample_type.iter().position(|it| text(it.kind) == name));
    let places = View::ALL.map(place);
    if places[View::Live as usize].contains(&None) {
        bail!("it is no profile of a heap: it has no inuse_space");
    }
    let rate = u64::try_from(file.period).unwrap_or(0).max(1);
    let index = |ids: Vec<u64>| -> HashMap<u64, usize> {
        ids.into_iter()
            .enumerate()
            .map(|(at, id)| (id, at))
            .collect()
    };
    let functions = index(file.function.iter().map(|it| it.id).collect());
    let mappings = index(file.mapping.iter().map(|it| it.id).collect());
    let locations = index(file.location.iter().map(|it| it.id).collect());
    let line = |line: &proto::Line| {
        let function = functions.get(&line.function_id);
        let function = function.map_or_else(Default::default, |&at| file.function[at]);
        model::Line {
            function: text(function.name),
            file: text(function.filename),
            line: u32::try_from(line.line).unwrap_or(0),
        }
    };
    let stack = |sample: &proto::Sample| {
        let label = |name: &str| sample.label.iter().find(|it| text(it.key) == name).copied();
        let value = |place: Option<usize>| {
            let value = place.and_then(|place| sample.value.get(place));
            value.map_or(0.0, |&value| value as f64)
        };
        model::Stack {
            locations: sample
                .location_id
                .iter()
                .filter_map(|id| locations.get(id).copied())
                .collect(),
            size: label(BYTES).map_or(0, |it| it.num as u64),
            thread: label(THREAD).map_or(String::new(), |it| text(it.str)),
            amounts: places
                .map(|[objects, bytes]| Amount::of_estimate(value(objects), value(bytes), rate)),
            lifetimes: Vec::new(),
        }
    };
    Ok(Profile {
        process: file.comment.first().map_or(String::new(), |&at| text(at)),
        rate,
        time_ns: u64::try_from(file.time_nanos).unwrap_or(0),
        duration_ns: u64::try_from(file.duration_nanos).unwrap_or(0),
        dropped: 0,
        mappings: file
            .mapping
            .iter()
            .map(|it| model::Mapping {
                start: it.memory_start,
                end: it.memory_limit,
                offset: it.file_offset,
                path: text(it.filename),
                build_id: text(it.build_id),
            })
            .collect(),
        locations: file
            .location
            .iter()
            .map(|it| model::Location {
                address: it.address,
                mapping: mappings.get(&it.mapping_id).copied(),
                lines: it.line.iter().map(line).collect(),
            })
            .collect(),
        stacks: file.sample.iter().map(stack).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::model::tests::profile;

    #[test]
    fn what_was_written_is_read() {
        let mut written = profile(&[
            (&["malloc_user", "main"], 4096, [9, 19, 11]),
            (&["other"], 64, [0, 3, 1]),
        ]);
        written.mappings.push(model::Mapping {
            start: 0x1000,
            end: 0x2000,
            offset: 0x400,
            path: "/bin/demo".into(),
            build_id: "00ff".into(),
        });
        written.locations[0].mapping = Some(0);
        written.locations[1].lines.clear();
        written.stacks[1].thread.clear();
        let file = write(&written, View::Live);
        assert_eq!(file[..2], GZIP);
        let mut read = read(&file).unwrap();
        // Values in the file are whole numbers.
        for (read, written) in read.stacks.iter_mut().zip(&written.stacks) {
            for (read, written) in read.amounts.iter_mut().zip(written.amounts) {
                assert!((read.bytes - written.bytes).abs() <= 0.5);
                assert!((read.objects - written.objects).abs() <= 0.5);
                assert!((read.error() - written.error()).abs() <= 0.01 * written.error());
                *read = written;
            }
        }
        assert_eq!(read, written);
    }

    #[test]
    fn the_view_is_the_default() {
        let kind = |view| {
            let mut plain = Vec::new();
            let file = write(&profile(&[]), view);
            GzDecoder::new(&*file).read_to_end(&mut plain).unwrap();
            let file = proto::Profile::decode(&*plain).unwrap();
            file.string_table[file.default_sample_type as usize].clone()
        };
        assert_eq!(
            View::ALL.map(kind),
            ["inuse_space", "alloc_space", "peak_space"]
        );
    }

    #[test]
    fn other_files_are_refused() {
        let file = write(&profile(&[]), View::Live);
        assert!(read(&file[..file.len() / 2]).is_err());
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(&proto::Profile::default().encode_to_vec())
            .unwrap();
        let said = format!("{:#}", read(&gzip.finish().unwrap()).unwrap_err());
        assert!(said.contains("inuse_space"), "{said}");
    }
}
