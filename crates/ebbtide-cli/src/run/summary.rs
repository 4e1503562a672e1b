//! The figures of a run, as text for people or as JSON with stable field names.

use ebbtide_tools::lock_figures;
use ebbtide_tools::out;
use ebbtide_tools::stats_page::{StatsPage, named};
use serde::Serialize;
use serde_json::{Value, json};

use crate::run::end::{End, Since};
use crate::run::sample::Samples;
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
        self.memory_back_ns = self.end.and_then(|end| end.wait_for_memory(pages));
    }

    /// Adds the time until the end was seen, from the statistics pages. Call it after the helpers have done their
    /// work.
    pub fn complete_end(&mut self, pages: &[StatsPage]) {
        let seen = self.end.and_then(|end| end.seen_after_ns(pages));
        self.end_seen_ns = seen.map(|(ns, _)| ns);
        self.end_seen_since = seen.map(|(_, since)| since);
    }
}

/// A summary of one run, or of two.
#[derive(Debug, Serialize)]
pub struct Summary {
    schema: u32,
    command: Vec<String>,
    with_ebbtide: Figures,
    without_ebbtide: Option<Figures>,
    /// The value with Ebbtide divided by the value without; below 1 means less with Ebbtide.
    ratio: Option<Value>,
}

fn ratio(with: u64, without: u64) -> Option<f64> {
    (without > 0).then(|| with as f64 / without as f64)
}

impl Summary {
    /// Puts the figures side by side.
    pub fn new(command: Vec<String>, with: Figures, without: Option<Figures>) -> Self {
        let ratios = |base: &Figures| {
            let ratio = |of: fn(&Figures) -> u64| ratio(of(&with), of(base));
            json!({
                "wall": ratio(|f| f.wall_ns),
                "cpu": ratio(|f| f.user_ns + f.system_ns),
                "rss_peak": ratio(|f| f.memory.rss_peak_bytes),
                "rss_mean": ratio(|f| f.memory.rss_mean_bytes),
                "rss_end": ratio(|f| f.memory.rss_end_bytes),
            })
        };
        Summary {
            schema: SCHEMA,
            ratio: without.as_ref().map(ratios),
            command,
            with_ebbtide: with,
            without_ebbtide: without,
        }
    }

    /// One JSON object and a line feed.
    pub fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default() + "\n"
    }

    /// Aligned lines; with two runs, two columns and the ratio.
    pub fn text(&self) -> String {
        let with = &self.with_ebbtide;
        let mut text = format!("\nebbtide run: {}\n{}", shown(&self.command), loaded(with));
        if self.without_ebbtide.is_some() {
            text += &line("", "with Ebbtide", "without", "ratio");
        }
        let base = self.without_ebbtide.as_ref().map(rows);
        for (place, (name, value, shown)) in rows(with).into_iter().enumerate() {
            let row = base.as_ref().map(|base| base[place].clone());
            let (_, base, beside) = row.unwrap_or_default();
            let quotient = value.zip(base).and_then(|(with, base)| ratio(with, base));
            let quotient = quotient.map_or(String::new(), |ratio| format!("{ratio:.2}"));
            text += &line(name, &shown, &beside, &quotient);
        }
        for (name, value) in library_rows(with) {
            text += &line(name, &value, "", "");
        }
        if let Some(lib) = &with.ebbtide {
            text += &lock_figures::table(&lib.sum.locks);
        }
        text
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

fn line(name: &str, value: &str, beside: &str, ratio: &str) -> String {
    let text = format!("  {name:<18}{value:>14}{beside:>14}{ratio:>8}");
    text.trim_end().to_owned() + "\n"
}

/// The figures of a run: name, value if it is known and can be compared, and the value as text.
fn rows(f: &Figures) -> Vec<(&'static str, Option<u64>, String)> {
    let status = match f.signal {
        Some(signal) => format!("{} (signal {signal})", f.exit_status),
        None => f.exit_status.to_string(),
    };
    let m = &f.memory;
    let sampled = |bytes| (m.samples > 0).then_some(bytes);
    let without_lazy = m.rss_without_lazy_end_bytes;
    let row = |name, value: Option<u64>, show: fn(u64) -> String| {
        let shown = value.map_or("too short".into(), show);
        (name, value, shown)
    };
    vec![
        ("exit status", None, status),
        row("wall time", Some(f.wall_ns), out::duration),
        row("user CPU", Some(f.user_ns), out::duration),
        row("system CPU", Some(f.system_ns), out::duration),
        row("peak RSS", Some(m.rss_peak_bytes), out::bytes),
        row("mean RSS", sampled(m.rss_mean_bytes), out::bytes),
        row("RSS at the end", sampled(m.rss_end_bytes), out::bytes),
        row("RSS without lazy", without_lazy, out::bytes),
        row("minor faults", Some(f.faults_minor), out::count),
        row("major faults", Some(f.faults_major), out::count),
    ]
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
        ("worker time", out::duration(sum.worker_ns)),
        ("longest stall", out::duration(sum.longest_stall_ns)),
        ("from other zones", out::count(sum.fallovers)),
        ("kept at the end", out::bytes(kept)),
        ("processes", processes),
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
                samples: 1,
                ..Samples::default()
            },
            ..Figures::default()
        }
    }

    #[test]
    fn json_has_stable_names() {
        let s = Summary::new(
            vec!["ls".into()],
            figures(2_000, 100),
            Some(figures(1_000, 200)),
        );
        let v: serde_json::Value = serde_json::from_str(&s.json()).unwrap();
        assert_eq!(v["schema"], 1);
        assert_eq!(v["with_ebbtide"]["wall_ns"], 2_000);
        assert_eq!(v["without_ebbtide"]["rss_peak_bytes"], 200);
        assert_eq!(v["ratio"]["wall"], 2.0);
        assert_eq!(v["ratio"]["rss_peak"], 0.5);
        assert!(v["ratio"]["rss_end"].is_null());
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
            locks: Vec::new(),
        }]);
        with.end_seen_ns = Some(41_000_000);
        let one = Summary::new(vec!["x".into()], with.clone(), None).text();
        assert!(one.contains("\nEbbtide was loaded by 1 process\n"), "{one}");
        assert!(one.contains("2.000 s") && one.contains("1.0 GiB") && one.contains("1 (1 rseq)"));
        assert!(one.contains("3.0 MiB") && one.contains("7.0 ms"), "{one}");
        assert!(one.contains("41.0 ms") && one.contains("unknown"), "{one}");
        with.end_seen_since = Some(Since::Signal);
        let told = Summary::new(vec!["x".into()], with.clone(), None);
        assert!(told.text().contains("the signal"), "{}", told.text());
        assert!(told.json().contains(r#""end_seen_since":"signal""#));
        let two = Summary::new(
            vec!["x".into()],
            with,
            Some(figures(1_000_000_000, 1 << 20)),
        )
        .text();
        assert!(two.contains("2.00") && two.contains("3.00"), "{two}");
    }

    #[test]
    fn text_says_whether_the_library_was_loaded() {
        let text = |figures| Summary::new(vec!["x".into()], figures, None).text();
        let mut figures = figures(1, 1);
        figures.not_loaded = Some("a static program".into());
        let alone = text(figures.clone());
        assert!(
            alone.contains("\nEbbtide was NOT loaded: a static program\n"),
            "{alone}"
        );
        figures.ebbtide = LibraryFigures::sum(&[StatsPage::default(), StatsPage::default()]);
        let both = text(figures);
        assert!(
            both.contains("\nEbbtide was loaded by 2 processes\n"),
            "{both}"
        );
    }

    #[test]
    fn command_is_one_short_line() {
        assert_eq!(shown(&["a".into(), "b\nc".into()]), "a b c");
        assert_eq!(shown(&["x".repeat(200)]).chars().count(), 72);
    }
}
