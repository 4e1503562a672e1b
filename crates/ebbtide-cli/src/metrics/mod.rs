//! `ebbtide metrics`: the figures of processes under Ebbtide as OpenMetrics text, once, for a file, or served to Prometheus.
//!
//! | module | what it does |
//! |---|---|
//! | `server` | answers Prometheus |
//! | `text` | families and samples, from the one table of figures |
//! | `owner` | the labels: process, cgroup, container |

mod owner;
mod server;
mod text;

use anyhow::{Result, bail};
use ebbtide_tools::out;

use crate::cli::MetricsArgs;
use crate::output::Output;
use crate::top::find::{self, Scope};
use text::{Form, Process};

/// Writes the text to stdout or a file, or serves it until a signal ends this program.
pub fn main(args: &MetricsArgs) -> Result<u8> {
    let scope = match args.pids.is_empty() {
        true => Scope::All,
        false => Scope::Pids(args.pids.clone()),
    };
    if let Some(address) = &args.listen {
        return server::serve(address, &scope);
    }
    let found = find::search(&scope).found;
    let reasons = find::without_figures(&args.pids, &found);
    if !args.pids.is_empty() && reasons.len() == args.pids.len() {
        bail!("{}", reasons.join("; "));
    }
    reasons.iter().for_each(|reason| out::warning(reason));
    let processes = with_figures(found);
    match &args.textfile {
        Some(path) => {
            // node_exporter may read the file at any time, as another user.
            let file = Output::open(path)?;
            file.let_all_read()?;
            file.write(text::of(&processes, Form::Classic).as_bytes())?;
        }
        None => {
            out::stdout(text::of(&processes, Form::OpenMetrics).as_bytes());
        }
    }
    Ok(0)
}

/// The processes with figures. Those that end meanwhile are left out.
fn with_figures(found: Vec<find::Found>) -> Vec<Process> {
    let read = |one: find::Found| {
        let page = one.page.ok()?.read()?;
        let labels = owner::labels(one.pid, &one.stat.name);
        let resident_bytes = owner::resident_bytes(one.pid);
        Some(Process {
            labels,
            resident_bytes,
            figures: page.figures,
        })
    };
    found.into_iter().filter_map(read).collect()
}
