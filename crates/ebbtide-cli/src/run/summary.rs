//! The figures of a run or of several rounds, as text for people or as JSON with stable field names.
//!
//! The text has two tiers: at most eight lines, and with `-v` all of them. JSON has everything.

use std::collections::BTreeMap;

use ebbtide_tools::lock_figures;
use ebbtide_tools::out;
use ebbtide_tools::stats_page::{StatsPage, named};
use serde::Serialize;

use crate::run::captured::{Difference, STREAMS};
use crate::run::end::{End, Since};
use crate::run::sample::Samples;
use crate::run::signals::ending_signal;
use crate::run::spread::{Pair, Spread};
use ebbtide_interface::PRESSURE_SOURCES;

/// Version of the JSON form; raised when a field changes its meaning.
const SCHEMA: u32 = 1;

/// The figures of one run of the command.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figures {
    /// Exit status, or 128 + the signal that ended the program.
    pub exit_status: u8,
    /// The signal that ended the program.
    pub signal: Option<i32>,
    /// From start to end.
    pub wall_ns: u64,
    /// CPU time in the program and its waited-for children.
    pub user_ns: u64,
    /// CPU time in the kernel for them.
    pub system_ns: u64,
    /// Its memory.
    #[serde(flatten)]
    pub memory: Samples,
    /// Page faults without input from a device.
    pub faults_minor: u64,
    /// Page faults that read from a device.
    pub faults_major: u64,
    /// Time from the beginning of the program's end, if known, until this process saw the end.
    pub end_seen_ns: Option<u64>,
    /// The event from which `end_seen_ns` is measured; none if not known.
    pub end_seen_since: Option<Since>,
    /// Time from there until the helpers that returned memory had ended; 0 without helpers, none if they stay.
    pub memory_back_ns: Option<u64>,
    /// The end of the command's first process.
    #[serde(skip)]
    pub end: Option<End>,
    /// The library's own figures; none if no process loaded it.
    pub ebbtide: Option<LibraryFigures>,
    /// Why no process loaded the library, as far as it is known; none if one did, or none should.
    pub not_loaded: Option<String>,
}

/// Sums over the processes that loaded the library.
#[derive(Clone, Debug, Default, Serialize)]
pub struct LibraryFigures {
    /// Processes that loaded it.
    pub processes: u64,
    /// Of these, with per-CPU caches by restartable sequences.
    pub processes_rseq: u64,
    /// The sums of their figures. Amounts of memory are as of the end.
    #[serde(flatten)]
    pub sum: StatsPage,
    /// The sources of memory pressure that the processes watched; empty if none had enough free memory to watch any.
    pub pressure_sources: Vec<&'static str>,
}

impl LibraryFigures {
    /// Sums the pages; `None` if there are none.
    pub fn sum(pages: &[StatsPage]) -> Option<Self> {
        let sources = pages.iter().fold(0, |mask, p| mask | p.pressure_sources);
        (!pages.is_empty()).then(|| LibraryFigures {
            processes: pages.len() as u64,
            processes_rseq: pages.iter().map(|page| page.rseq_mode).sum(),
            sum: StatsPage::sum(pages),
            pressure_sources: named(sources, &PRESSURE_SOURCES),
        })
    }
}

impl Figures {
    /// Waits for the helpers that the statistics pages name.
    pub fn wait_for_memory(&mut self, pages: &[StatsPage]) {
        self.memory_back_ns = self.end.and_then(|end| {
            // A signal that came after the end of the command ends the wait.
            end.wait_for_memory(pages, || ending_signal(end.seen_ns).is_some())
        });
    }

    /// Adds the time until the end was seen, from the statistics pages. Call it after the helpers have done their
    /// work.
    pub fn complete_end(&mut self, pages: &[StatsPage]) {
        let seen = self.end.and_then(|end| end.seen_after_ns(pages));
        self.end_seen_ns = seen.map(|(ns, _)| ns);
        self.end_seen_since = seen.map(|(_, since)| since);
    }
}

/// A round with Ebbtide and the one without that followed.
#[derive(Debug, Serialize)]
pub struct Round {
    /// The figures with Ebbtide.
    pub with_ebbtide: Figures,
    /// The figures without.
    pub without_ebbtide: Figures,
}

/// A figure of a run that is shown, and compared.
struct Metric {
    /// Its name in JSON.
    key: &'static str,
    /// Its name in the text.
    name: &'static str,
    /// Whether it is shown without `-v`.
    is_brief: bool,
    /// The value, if it is known.
    of: fn(&Figures) -> Option<u64>,
    /// The value as text.
    show: fn(u64) -> String,
}

const fn metric(
    key: &'static str,
    name: &'static str,
    is_brief: bool,
    of: fn(&Figures) -> Option<u64>,
    show: fn(u64) -> String,
) -> Metric {
    Metric {
        key,
        name,
        is_brief,
        of,
        show,
    }
}

/// Bytes that samples found: unknown if there was no sample in time.
fn sampled(f: &Figures, bytes: u64) -> Option<u64> {
    (f.memory.samples > 0).then_some(bytes)
}

const TIME: Metric = metric(
    "wall",
    "wall time",
    true,
    |f| Some(f.wall_ns),
    out::duration,
);
const MEAN: Metric = metric(
    "rss_mean",
    "mean RSS",
    true,
    |f| sampled(f, f.memory.rss_mean_bytes),
    out::bytes,
);

/// All of them. Amounts of memory are those of all processes of the command together.
const METRICS: [Metric; 11] = [
    TIME,
    metric(
        "cpu",
        "CPU time",
        true,
        |f| Some(f.user_ns + f.system_ns),
        out::duration,
    ),
    metric(
        "user",
        "user CPU",
        false,
        |f| Some(f.user_ns),
        out::duration,
    ),
    metric(
        "system",
        "system CPU",
        false,
        |f| Some(f.system_ns),
        out::duration,
    ),
    metric(
        "rss_peak",
        "peak RSS",
        true,
        |f| Some(f.memory.tree_rss_peak_bytes),
        out::bytes,
    ),
    MEAN,
    metric(
        "rss_stable",
        "last stable second",
        true,
        |f| f.memory.rss_stable_bytes,
        out::bytes,
    ),
    metric(
        "rss_end",
        "RSS at the end",
        false,
        |f| sampled(f, f.memory.rss_end_bytes),
        out::bytes,
    ),
    metric(
        "rss_without_lazy_end",
        "RSS without lazy",
        false,
        |f| f.memory.rss_without_lazy_end_bytes,
        out::bytes,
    ),
    metric(
        "faults_minor",
        "minor faults",
        false,
        |f| Some(f.faults_minor),
        out::count,
    ),
    metric(
        "faults_major",
        "major faults",
        false,
        |f| Some(f.faults_major),
        out::count,
    ),
];

/// A summary of one run, or of several rounds.
#[derive(Debug, Serialize)]
pub struct Summary {
    schema: u32,
    command: Vec<String>,
    /// The run, or the first round with Ebbtide.
    with_ebbtide: Figures,
    /// The first round without.
    without_ebbtide: Option<Figures>,
    /// The mean with Ebbtide divided by the mean without; below 1 means less with Ebbtide.
    ratio: Option<BTreeMap<&'static str, Option<f64>>>,
    /// The same figures with mean and spread of both.
    comparison: Option<BTreeMap<&'static str, Option<Pair>>>,
    /// How the output of the rounds differs, for stdout and stderr.
    output: Option<BTreeMap<&'static str, Difference>>,
    /// All measured rounds.
    rounds: Vec<Round>,
}

impl Summary {
    /// The figures of one run.
    pub fn new(command: Vec<String>, with: Figures) -> Self {
        Summary {
            schema: SCHEMA,
            command,
            with_ebbtide: with,
            without_ebbtide: None,
            ratio: None,
            comparison: None,
            output: None,
            rounds: Vec::new(),
        }
    }

    /// Puts the figures of at least one round side by side.
    pub fn compared(
        command: Vec<String>,
        rounds: Vec<Round>,
        output: [Difference; STREAMS.len()],
    ) -> Self {
        let pairs = METRICS.iter().map(|m| (m.key, pair(&rounds, m)));
        let pairs: BTreeMap<_, _> = pairs.collect();
        let ratio = |pair: &Option<Pair>| pair.and_then(|pair| pair.ratio);
        Summary {
            without_ebbtide: Some(rounds[0].without_ebbtide.clone()),
            ratio: Some(
                pairs
                    .iter()
                    .map(|(key, pair)| (*key, ratio(pair)))
                    .collect(),
            ),
            comparison: Some(pairs),
            output: Some(STREAMS.into_iter().zip(output).collect()),
            ..Summary::new(command, rounds[0].with_ebbtide.clone())
        }
        .with_rounds(rounds)
    }

    fn with_rounds(mut self, rounds: Vec<Round>) -> Self {
        self.rounds = rounds;
        self
    }

    /// One JSON object and a line feed.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }

    /// At most eight lines; with `is_verbose` all.
    pub fn text(&self, is_verbose: bool) -> String {
        let mut text = String::new();
        if is_verbose {
            text += &format!("\nebbtide run: {}\n", shown(&self.command));
        }
        match self.rounds.is_empty() {
            true => text += &self.alone(is_verbose),
            false => text += &self.side_by_side(is_verbose),
        }
        if is_verbose {
            for (name, value) in library_rows(&self.with_ebbtide) {
                text += &line(name, &value);
            }
            if let Some(lib) = &self.with_ebbtide.ebbtide {
                text += &lock_figures::table(&lib.sum.locks);
            }
        }
        text
    }

    /// The figures of one run.
    fn alone(&self, is_verbose: bool) -> String {
        let figures = &self.with_ebbtide;
        let mut text = loaded(figures);
        text += &line("exit status", &status(figures));
        for metric in METRICS.iter().filter(|m| m.is_brief || is_verbose) {
            let value = (metric.of)(figures);
            text += &line(metric.name, &value.map_or("too short".into(), metric.show));
        }
        if !is_verbose {
            let released = figures.ebbtide.as_ref().map(|lib| lib.sum.released_bytes);
            text += &line(
                "released",
                &released.map_or("unknown".into(), |n| format!("≤ {}", out::bytes(n))),
            );
        }
        text
    }

    /// The figures of all rounds, with their spread.
    fn side_by_side(&self, is_verbose: bool) -> String {
        let row = |name: &str, with: &str, without: &str, ratio: &str| {
            let text = format!("  {name:<18}{with:>20}{without:>20}{ratio:>8}");
            text.trim_end().to_owned() + "\n"
        };
        let mut text = format!("ebbtide: {}\n", self.headline());
        text += &loaded(&self.with_ebbtide);
        text += &row("", "with Ebbtide", "without", "ratio");
        if let (true, Some(without)) = (is_verbose, &self.without_ebbtide) {
            text += &row(
                "exit status",
                &status(&self.with_ebbtide),
                &status(without),
                "",
            );
        }
        for metric in METRICS.iter().filter(|m| m.is_brief || is_verbose) {
            let cell = |side: fn(&Round) -> &Figures| {
                let values = self.rounds.iter().map(|round| (metric.of)(side(round)));
                Spread::of(values).map_or("too short".into(), |s| self.shown_spread(metric, &s))
            };
            let ratio = pair(&self.rounds, metric).map_or(String::new(), |pair| pair.shown());
            text += &row(
                metric.name,
                &cell(|r| &r.with_ebbtide),
                &cell(|r| &r.without_ebbtide),
                &ratio,
            );
        }
        text
    }

    /// The mean, and how far the rounds are from it.
    fn shown_spread(&self, metric: &Metric, spread: &Spread) -> String {
        let mean = (metric.show)(spread.mean as u64);
        match self.rounds.len() {
            1 => mean,
            _ => format!("{mean} ±{:>3.0} %", spread.percent()),
        }
    }

    /// Memory and time in one sentence.
    fn headline(&self) -> String {
        let sentence = |metric, what| pair(&self.rounds, metric)?.sentence(what);
        let parts = [sentence(&MEAN, "memory"), sentence(&TIME, "time")];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        let count = rounds_shown(self.rounds.len());
        format!("{} ({count} each)", parts.join(", "))
    }
}

/// Both sides of a figure, if it is known in all rounds.
fn pair(rounds: &[Round], metric: &Metric) -> Option<Pair> {
    let spread =
        |side: fn(&Round) -> &Figures| Spread::of(rounds.iter().map(|r| (metric.of)(side(r))));
    let (with, without) = (
        spread(|r| &r.with_ebbtide)?,
        spread(|r| &r.without_ebbtide)?,
    );
    Some(Pair::new(with, without, rounds.len()))
}

/// The exit status as text.
fn status(f: &Figures) -> String {
    match f.signal {
        Some(signal) => format!("{} (signal {signal})", f.exit_status),
        None => f.exit_status.to_string(),
    }
}

/// `1 round` or `3 rounds`.
pub fn rounds_shown(count: usize) -> String {
    match count {
        1 => "1 round".into(),
        _ => format!("{count} rounds"),
    }
}

/// The line that says whether Ebbtide was loaded.
fn loaded(figures: &Figures) -> String {
    match (&figures.ebbtide, &figures.not_loaded) {
        (Some(library), _) if library.processes == 1 => "Ebbtide was loaded by 1 process\n".into(),
        (Some(library), _) => format!("Ebbtide was loaded by {} processes\n", library.processes),
        (None, Some(reason)) => format!("Ebbtide was NOT loaded: {reason}\n"),
        (None, None) => "Ebbtide was NOT loaded: the reason is not known\n".into(),
    }
}

fn duration(ns: Option<u64>) -> String {
    ns.map_or("unknown".into(), out::duration)
}

/// The command on one line of limited length.
fn shown(words: &[String]) -> String {
    const MAX_CHARS: usize = 72;
    let text = words.join(" ").replace(char::is_control, " ");
    if text.chars().count() <= MAX_CHARS {
        return text;
    }
    text.chars().take(MAX_CHARS - 1).chain(['…']).collect()
}

fn line(name: &str, value: &str) -> String {
    format!("  {name:<18}{value:>14}\n")
}

/// What the library did in a run: names and values as text.
fn library_rows(figures: &Figures) -> Vec<(&'static str, String)> {
    let Some(lib) = &figures.ebbtide else {
        return vec![("released", "unknown".into())];
    };
    let sum = &lib.sum;
    let kept = sum.dirty_bytes + sum.lazy_bytes + sum.pending_bytes + sum.unsplit_bytes;
    let since = figures.end_seen_since.map_or("unknown", Since::shown);
    let processes = format!("{} ({} rseq)", lib.processes, lib.processes_rseq);
    let sources = out::list(&lib.pressure_sources, "none needed");
    vec![
        ("end seen after", duration(figures.end_seen_ns)),
        ("measured from", since.into()),
        ("memory back after", duration(figures.memory_back_ns)),
        ("released", out::bytes(sum.released_bytes)),
        ("release calls", out::count(sum.release_calls)),
        ("used again", out::bytes(sum.refaulted_bytes)),
        ("made lazy", out::bytes(sum.lazied_bytes)),
        ("taken by kernel", out::bytes(sum.lazy_taken_bytes)),
        ("worker time", out::duration(sum.worker_ns)),
        ("longest stall", out::duration(sum.longest_stall_ns)),
        ("from other zones", out::count(sum.fallovers)),
        ("kept at the end", out::bytes(kept)),
        ("processes", processes),
        ("detached ends", out::count(sum.exits_detached)),
        ("inline instead", out::count(sum.exits_fallen_back)),
        ("pressure sources", sources),
        ("pressure events", out::count(sum.pressure_events)),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(wall_ns: u64, peak: u64) -> Figures {
        Figures {
            wall_ns,
            user_ns: wall_ns,
            memory: Samples {
                rss_peak_bytes: peak,
                tree_rss_peak_bytes: peak,
                rss_mean_bytes: peak,
                samples: 1,
                ..Samples::default()
            },
            ..Figures::default()
        }
    }

    fn compared(rounds: &[(u64, u64, u64, u64)]) -> Summary {
        let rounds = rounds
            .iter()
            .map(|&(with_ns, with_bytes, ns, bytes)| Round {
                with_ebbtide: figures(with_ns, with_bytes),
                without_ebbtide: figures(ns, bytes),
            });
        let output = [Difference::None, Difference::BetweenRounds];
        Summary::compared(vec!["ls".into()], rounds.collect(), output)
    }

    #[test]
    fn json_has_stable_names() {
        let s = compared(&[(2_000, 100, 1_000, 200), (2_200, 100, 1_100, 200)]);
        let v: serde_json::Value = serde_json::from_str(&s.json()).unwrap();
        assert_eq!(v["schema"], 1);
        assert_eq!(v["with_ebbtide"]["wall_ns"], 2_000);
        assert_eq!(v["without_ebbtide"]["rss_mean_bytes"], 200);
        assert_eq!(v["ratio"]["wall"], 2.0);
        assert_eq!(v["ratio"]["rss_peak"], 0.5);
        assert!(v["ratio"]["rss_stable"].is_null());
        let wall = &v["comparison"]["wall"];
        assert_eq!(
            (&wall["with"]["max"], &wall["without"]["mean"]),
            (&2_200.into(), &1_050.0.into())
        );
        assert_eq!(wall["is_within_spread"], false);
        assert_eq!(
            (&v["output"]["stdout"], &v["output"]["stderr"]),
            (&"none".into(), &"between_rounds".into())
        );
        assert_eq!(v["rounds"][1]["with_ebbtide"]["wall_ns"], 2_200);
        let one = Summary::new(vec!["ls".into()], figures(1, 2)).json();
        let v: serde_json::Value = serde_json::from_str(&one).unwrap();
        assert!(
            v["without_ebbtide"].is_null()
                && v["ratio"].is_null()
                && v["with_ebbtide"]["wall_ns"] == 1
        );
    }

    #[test]
    fn rounds_have_a_headline_and_a_spread() {
        let (s, mib) = (1_000_000_000, 1 << 20);
        let two = compared(&[
            (8 * s, 28 * mib, 9 * s, 99 * mib),
            (10 * s, 30 * mib, 11 * s, 100 * mib),
        ]);
        let text = two.text(false);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines[0],
            "ebbtide: 0.29 times the memory, ≈ the same time (2 rounds each)"
        );
        assert!(lines.len() <= 8, "{text}");
        assert!(
            text.contains("9.000 s ± 11 %") && text.contains("0.29\n"),
            "{text}"
        );
        assert!(text.contains("≈\n") && text.contains("too short"), "{text}");
        let all = two.text(true);
        assert!(
            all.contains("user CPU") && all.contains("exit status") && all.contains("released"),
            "{all}"
        );
        let one = compared(&[(8 * s, 28 * mib, 4 * s, 56 * mib)]).text(false);
        assert!(
            one.starts_with("ebbtide: 0.50 times the memory, 2.00 times the time (1 round each)\n"),
            "{one}"
        );
        assert!(!one.contains('±'), "{one}");
    }

    #[test]
    fn text_has_the_figures() {
        let mut with = figures(2_000_000_000, 3 << 20);
        let figures_of_library = ebbtide_interface::Figures {
            released_bytes: 1 << 30,
            rseq_mode: 1,
            dirty_bytes: 1 << 20,
            unsplit_bytes: 2 << 20,
            longest_stall_ns: 7_000_000,
            ..ebbtide_interface::Figures::default()
        };
        with.ebbtide = LibraryFigures::sum(&[StatsPage {
            figures: figures_of_library,
            ..StatsPage::default()
        }]);
        with.end_seen_ns = Some(41_000_000);
        let text = |figures: &Figures, is_verbose| {
            Summary::new(vec!["x".into()], figures.clone()).text(is_verbose)
        };
        let brief = text(&with, false);
        assert!(
            brief.starts_with("Ebbtide was loaded by 1 process\n"),
            "{brief}"
        );
        assert!(
            brief.lines().count() <= 8 && brief.contains("≤ 1.0 GiB"),
            "{brief}"
        );
        assert!(
            brief.contains("2.000 s") && brief.contains("3.0 MiB"),
            "{brief}"
        );
        assert!(!brief.contains("7.0 ms"), "{brief}");
        let one = text(&with, true);
        assert!(
            one.contains("1.0 GiB") && one.contains("1 (1 rseq)") && one.contains("7.0 ms"),
            "{one}"
        );
        assert!(one.contains("41.0 ms") && one.contains("unknown"), "{one}");
        with.end_seen_since = Some(Since::Signal);
        let told = Summary::new(vec!["x".into()], with);
        assert!(
            told.text(true).contains("the signal"),
            "{}",
            told.text(true)
        );
        assert!(told.json().contains(r#""end_seen_since":"signal""#));
    }

    #[test]
    fn text_says_whether_the_library_was_loaded() {
        let text = |figures| Summary::new(vec!["x".into()], figures).text(false);
        let mut figures = figures(1, 1);
        figures.not_loaded = Some("a static program".into());
        let alone = text(figures.clone());
        assert!(
            alone.contains("Ebbtide was NOT loaded: a static program\n"),
            "{alone}"
        );
        figures.ebbtide = LibraryFigures::sum(&[StatsPage::default(), StatsPage::default()]);
        let both = text(figures);
        assert!(
            both.contains("Ebbtide was loaded by 2 processes\n"),
            "{both}"
        );
    }

    #[test]
    fn command_is_one_short_line() {
        assert_eq!(shown(&["a".into(), "b\nc".into()]), "a b c");
        assert_eq!(shown(&["x".repeat(200)]).chars().count(), 72);
    }
}
