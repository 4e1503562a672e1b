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

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, bail};
use ebbtide_tools::out;

use crate::cli::MetricsArgs;
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
    let processes = processes(&scope);
    if !args.pids.is_empty() && processes.is_empty() {
        bail!("none of these processes keeps a statistics page; 'ebbtide top PID' says why");
    }
    match &args.textfile {
        Some(path) => replace(path, &text::of(&processes, Form::Classic)).map(|()| 0),
        None => {
            let text = text::of(&processes, Form::OpenMetrics);
            Ok(u8::from(!out::stdout(text.as_bytes())))
        }
    }
}

/// The processes with figures. Those that end meanwhile are left out.
fn processes(scope: &Scope) -> Vec<Process> {
    let found = find::search(scope).found.into_iter();
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
    found.filter_map(read).collect()
}

/// Replaces a file as a whole: node_exporter may read it at any time.
fn replace(path: &Path, text: &str) -> Result<()> {
    let cannot = || {
        format!(
            "cannot write {}; give a file in a directory in which you may write",
            path.display()
        )
    };
    let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
    let mut file =
        tempfile::NamedTempFile::new_in(dir.unwrap_or(Path::new("."))).with_context(cannot)?;
    file.write_all(text.as_bytes()).with_context(cannot)?;
    // The exporter runs as another user.
    let readable = std::os::unix::fs::PermissionsExt::from_mode(0o644);
    fs::set_permissions(file.path(), readable).with_context(cannot)?;
    file.persist(path).with_context(cannot)?;
    Ok(())
}
