//! Writes a profile: its form, its file, its title.

use std::io::{IsTerminal, stdout};
use std::path::Path;

use anyhow::{Context, Result, bail};
use ebbtide_tools::out;

use super::model::{Profile, View};
use super::raw::{Raw, Unwinder};
use super::{files, flame, pprof, text};
use crate::cli::{ProfileArgs, ProfileFormat};
use crate::output::Output;

/// What a profile shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Estimates of a view.
    View(View),
    /// What was live at the end of a command.
    Leaks,
    /// How long objects lived.
    Lifetimes,
}

impl Shown {
    /// The view of the amounts.
    pub fn view(self) -> View {
        match self {
            Self::View(view) => view,
            Self::Leaks => View::Live,
            Self::Lifetimes => View::Allocated,
        }
    }

    fn title(self, is_change: bool) -> &'static str {
        match (self, is_change) {
            (Self::View(View::Live), false) => "live heap",
            (Self::View(View::Live), true) => "change of the live heap",
            (Self::View(View::Allocated) | Self::Lifetimes, false) => "all allocations",
            (Self::View(View::Allocated) | Self::Lifetimes, true) => "change of all allocations",
            (Self::View(View::Peak), false) => "heap at its peak",
            (Self::View(View::Peak), true) => "change of the heap at its peak",
            (Self::Leaks, false) => "live at the end",
            (Self::Leaks, true) => "change of what was live at the end",
        }
    }
}

/// Where and how a profile is written.
pub struct Report {
    /// What it shows.
    pub shown: Shown,
    form: ProfileFormat,
    output: Option<Output>,
    old: Option<Profile>,
}

impl Report {
    /// Checks the arguments, and opens the files: errors come before a long run.
    pub fn open(args: &ProfileArgs) -> Result<Self> {
        let form = args
            .format
            .unwrap_or_else(|| form_of(args.output.as_deref()));
        let shown = match args {
            ProfileArgs {
                allocated: true, ..
            } => Shown::View(View::Allocated),
            ProfileArgs { peak: true, .. } => Shown::View(View::Peak),
            ProfileArgs { leaks: true, .. } => Shown::Leaks,
            ProfileArgs {
                lifetimes: true, ..
            } => Shown::Lifetimes,
            // The heap of a command at its end is what it leaks.
            _ if args.source.is_none() && args.seconds.is_none() => Shown::View(View::Peak),
            _ => Shown::View(View::Live),
        };
        if shown == Shown::Lifetimes && form != ProfileFormat::Text {
            bail!("lifetimes are text only: leave out --format, and give a FILE that ends in .txt");
        }
        if form == ProfileFormat::Pprof && args.output.is_none() && stdout().is_terminal() {
            bail!("a pprof file is not for a terminal; give --output FILE.pb.gz");
        }
        let old = match &args.against {
            Some(path) => Some(files::read(path).context("--against")?.0),
            None => None,
        };
        Ok(Self {
            shown,
            form,
            output: args.output.as_deref().map(Output::open).transpose()?,
            old,
        })
    }

    /// Writes the profile; notes go to stderr.
    pub fn write(&mut self, profile: Profile, notes: Vec<String>) -> Result<()> {
        notes.iter().for_each(|note| out::warning(note));
        let view = self.shown.view();
        let is_change = self.old.is_some();
        let title = format!("{}: {}", profile.process, self.shown.title(is_change));
        let bytes = match self.form {
            ProfileFormat::Svg => {
                if profile.total(view).bytes <= 0.0 {
                    bail!("there is nothing to draw: no samples; a smaller --rate takes more");
                }
                // A phone is as wide as this.
                let sum = sum(&profile, view);
                flame::draw(&profile, self.old.as_ref(), view, [&title, &sum])?.into_bytes()
            }
            form => {
                let sum = summary(&profile, view);
                let profile = match &self.old {
                    Some(old) => profile.without(old),
                    None => profile,
                };
                match form {
                    ProfileFormat::Pprof => pprof::write(&profile, view),
                    _ => self.text(
                        &profile,
                        &format!("{title}, now {sum}"),
                        &format!("{title}, {sum}"),
                    )?,
                }
            }
        };
        match self.output.take() {
            Some(output) => output.write(&bytes),
            None => {
                out::stdout(&bytes);
                Ok(())
            }
        }
    }

    fn text(&self, profile: &Profile, change_title: &str, title: &str) -> Result<Vec<u8>> {
        let is_change = self.old.is_some();
        let title = if is_change { change_title } else { title };
        let body = match self.shown {
            Shown::Lifetimes if profile.stacks.iter().all(|it| it.lifetimes.is_empty()) => bail!(
                "it has no lifetimes: a pprof file does not keep them; give a process or a dump (profile_dump=PATH)"
            ),
            Shown::Lifetimes => text::lifetimes(profile),
            shown => text::of(profile, shown.view(), is_change),
        };
        Ok(format!("{title}\n\n{body}").into_bytes())
    }
}

/// The form that a file's ending asks for.
fn form_of(path: Option<&Path>) -> ProfileFormat {
    let name = path.and_then(Path::to_str).unwrap_or_default();
    match name {
        _ if name.ends_with(".pb.gz") || name.ends_with(".pprof") => ProfileFormat::Pprof,
        _ if name.ends_with(".svg") => ProfileFormat::Svg,
        _ => ProfileFormat::Text,
    }
}

/// The sum of a profile, with its error.
fn sum(profile: &Profile, view: View) -> String {
    let total = profile.total(view);
    let error = match total.bytes {
        0.0 => 0.0,
        bytes => 100.0 * total.error() / bytes.abs(),
    };
    let bytes = out::bytes(total.bytes.max(0.0).round() as u64);
    format!("{bytes} (estimated, ± {error:.1} %)")
}

/// The sum of a profile, its objects and its rate.
fn summary(profile: &Profile, view: View) -> String {
    format!(
        "{} in {} objects; a sample every {}",
        sum(profile, view),
        out::count(profile.total(view).objects.max(0.0).round() as u64),
        out::bytes(profile.rate)
    )
}

/// What a reader should know of the samples.
pub fn notes_of(raw: &Raw) -> Vec<String> {
    let mut notes = Vec::new();
    let lost = raw.area.dropped + raw.area.missed;
    if lost > 0 {
        notes.push(format!(
            "{} of {} samples were lost, so sums are too low: a larger --rate takes fewer",
            out::count(lost),
            out::count(raw.area.total_objects + raw.area.missed)
        ));
    }
    match raw.unwinder() {
        _ if raw.stacks.is_empty() => {}
        Unwinder::Tables => {}
        Unwinder::FramePointers => notes.push(
            "calls were found by frame pointers, so some may be missing or wrong: build the program with -fno-omit-frame-pointer".into(),
        ),
        Unwinder::None => notes.push(
            "only the callers of malloc are known: the process may not read its stack (syscalls=basic, or a filter)".into(),
        ),
    }
    notes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::raw::RawStack;

    #[test]
    fn the_ending_says_the_form() {
        let form = |name: &str| form_of(Some(Path::new(name)));
        assert_eq!(form("a.pb.gz"), ProfileFormat::Pprof);
        assert_eq!(form("a.pprof"), ProfileFormat::Pprof);
        assert_eq!(form("a.svg"), ProfileFormat::Svg);
        assert_eq!(form("a.txt"), ProfileFormat::Text);
        assert_eq!(form_of(None), ProfileFormat::Text);
    }

    #[test]
    fn a_reader_is_told_what_is_missing() {
        let mut raw = Raw::default();
        assert!(notes_of(&raw).is_empty());
        (raw.area.dropped, raw.area.total_objects) = (3, 10);
        raw.stacks.push(RawStack {
            rate: 1,
            size: 16,
            thread: String::new(),
            frames: Vec::new(),
            samples: [(1, 16); 3],
            lifetimes: Default::default(),
        });
        let said = |raw: &Raw| notes_of(raw).join("\n");
        assert!(said(&raw).starts_with("3 of 10 samples"));
        assert!(said(&raw).contains("callers of malloc"));
        raw.area.unwinder = Unwinder::FramePointers as u64;
        assert!(said(&raw).contains("-fno-omit-frame-pointer"));
        raw.area.unwinder = Unwinder::Tables as u64;
        assert_eq!(notes_of(&raw).len(), 1);
    }
}
