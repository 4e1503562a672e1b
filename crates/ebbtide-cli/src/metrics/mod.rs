//! `ebbtide metrics`: the figures of processes under Ebbtide as OpenMetrics text, once, for a file, or served to Prometheus.
//!
//! | module | what it does |
//! |---|---|
//! | `text` | families and samples, from the one table of figures |
//! | `owner` | the labels: process, cgroup, container |

mod owner;
mod text;

use std::fs;
use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result, anyhow, bail};
use ebbtide_tools::out;
use tiny_http::{Header, Method, Response, Server};

use crate::cli::MetricsArgs;
use crate::top::find::{self, Scope};
use text::Process;

/// The content type that Prometheus asks for.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// Writes the text to stdout or a file, or serves it until a signal ends this program.
pub fn main(args: &MetricsArgs) -> Result<u8> {
    let scope = match args.pids.is_empty() {
        true => Scope::All,
        false => Scope::Pids(args.pids.clone()),
    };
    if let Some(address) = &args.listen {
        return serve(address, &scope);
    }
    let processes = processes(&scope);
    if !args.pids.is_empty() && processes.is_empty() {
        bail!("none of these processes keeps a statistics page; 'ebbtide top PID' says why");
    }
    let text = text::of(&processes);
    match &args.textfile {
        Some(path) => replace(path, &text).map(|()| 0),
        None => Ok(u8::from(!out::stdout(text.as_bytes()))),
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
    let cannot = || format!("cannot write {}", path.display());
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

/// Answers `GET /metrics`, one request after the other.
fn serve(address: &str, scope: &Scope) -> Result<u8> {
    let server = Server::http(address).map_err(|error| {
        anyhow!(
            "cannot listen on {address}: {error}; give ADDRESS:PORT of this machine that is free"
        )
    })?;
    out::stderr(&format!(
        "ebbtide: serving http://{}/metrics\n",
        server.server_addr()
    ));
    let content_type: Header = format!("Content-Type: {CONTENT_TYPE}")
        .parse()
        .map_err(|()| anyhow!("bad header"))?;
    loop {
        let request = server.recv().context("cannot accept connections")?;
        let path = request.url().split('?').next().unwrap_or_default();
        let is_known = matches!(request.method(), Method::Get | Method::Head) && path == "/metrics";
        // A client that has gone away is no concern of the next one.
        let _ = match is_known {
            true => request.respond(
                Response::from_string(text::of(&processes(scope)))
                    .with_header(content_type.clone()),
            ),
            false => request.respond(Response::from_string("see /metrics\n").with_status_code(404)),
        };
    }
}
