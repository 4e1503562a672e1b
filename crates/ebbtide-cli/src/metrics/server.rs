//! Answers `GET /metrics` in HTTP/1.1, one request a connection.
//!
//! Each connection has a thread and a time limit, and there are few at once: a client that sends or reads nothing costs only its own answer.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Error, Result};
use ebbtide_tools::out;

use super::text::{self, Form};
use super::with_figures;
use crate::top::find::{self, Scope};

/// The content type that Prometheus asks for.
const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Connections at once; further ones are closed.
const MOST_CLIENTS: usize = 16;
/// Time for a client to send, and to read.
const PATIENCE: Duration = Duration::from_secs(5);
/// The longest head of a request, in bytes.
const MAX_HEAD: u64 = 8192;

/// Serves until a signal ends this program.
pub fn serve(address: &str, scope: &Scope) -> Result<u8> {
    let listener = TcpListener::bind(address).map_err(|error| {
        let remedy = match error.kind() {
            ErrorKind::PermissionDenied => "only root may use ports below 1024: give a higher one",
            ErrorKind::AddrInUse => "another program has this port: give another one",
            _ => "give an ADDRESS:PORT of this machine, such as 127.0.0.1:9485",
        };
        Error::new(error).context(format!("cannot listen on {address}; {remedy}"))
    })?;
    let address = listener.local_addr().context("no address")?;
    out::stderr(&format!("ebbtide: serving http://{address}/metrics\n"));
    let clients = Arc::new(AtomicUsize::new(0));
    loop {
        let Ok((stream, _)) = listener.accept() else {
            // Without a free descriptor: until a client leaves.
            thread::sleep(Duration::from_millis(100));
            continue;
        };
        if clients.fetch_add(1, Ordering::Relaxed) >= MOST_CLIENTS {
            clients.fetch_sub(1, Ordering::Relaxed);
            continue;
        }
        let (scope, here) = (scope.clone(), Arc::clone(&clients));
        let made = thread::Builder::new().spawn(move || {
            // A client that has gone away is no concern of others.
            let _ = answer(stream, &scope);
            here.fetch_sub(1, Ordering::Relaxed);
        });
        if made.is_err() {
            clients.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

fn answer(mut stream: TcpStream, scope: &Scope) -> std::io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut head = BufReader::new((&stream).take(MAX_HEAD)).lines();
    let first = head.next().transpose()?.unwrap_or_default();
    // The connection is closed with all of the request read: otherwise the client may lose the answer.
    for line in head {
        if line?.is_empty() {
            break;
        }
    }
    let mut words = first.split(' ');
    let (method, target) = (words.next(), words.next().unwrap_or_default());
    let is_known =
        matches!(method, Some("GET" | "HEAD")) && target.split('?').next() == Some("/metrics");
    let (status, kind, text) = match is_known {
        true => {
            let text = text::of(&with_figures(find::search(scope).found), Form::OpenMetrics);
            ("200 OK", CONTENT_TYPE, text)
        }
        false => ("404 Not Found", "text/plain", "see /metrics\n".into()),
    };
    let length = text.len();
    let body = if method == Some("HEAD") { "" } else { &text };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    )
}
