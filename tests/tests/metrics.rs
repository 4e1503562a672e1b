//! Tests `ebbtide metrics` with a process under the library, and with a real Prometheus that scrapes it.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use ebbtide_tests::{command_line, ensure_installed, library, only_ebbtide};
use serde_json::Value;
use tempfile::TempDir;

/// A child that is killed when the test ends.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A process with 100 MiB of live memory and a page.
fn holder(dir: &Path) -> Option<Killed> {
    let library = library().filter(|_| only_ebbtide("keeps figures"))?;
    let mut command = Command::new("python3");
    let child = command
        .args([
            "-c",
            "x = bytearray(b'x') * (100 << 20); print('there', flush=True); input()",
        ])
        .env("LD_PRELOAD", library)
        .env("EBBTIDE_CONF", format!("stats_dir={}", dir.display()))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = Killed(child.expect("python3"));
    let mut line = String::new();
    let mut stdout = BufReader::new(child.0.stdout.take().expect("a pipe"));
    stdout.read_line(&mut line).expect("a line");
    assert_eq!(line, "there\n");
    Some(child)
}

fn metrics(args: &[&str]) -> Option<Command> {
    let mut command = Command::new(command_line()?);
    command.arg("metrics").args(args);
    command.env_remove("EBBTIDE_CONF").env_remove("LD_PRELOAD");
    Some(command)
}

fn directory() -> TempDir {
    tempfile::tempdir().expect("temporary directory")
}

/// The value of the sample of a family that has this label.
fn sample(text: &str, family: &str, label: &str) -> u64 {
    let line = text
        .lines()
        .find(|line| line.starts_with(&format!("{family}{{")) && line.contains(label));
    let value = line.and_then(|line| line.rsplit(' ').next()?.parse().ok());
    value.unwrap_or_else(|| panic!("no {family} with {label}:\n{text}"))
}

#[test]
fn figures_of_a_process() {
    let dir = directory();
    let Some(child) = holder(dir.path()) else {
        return;
    };
    let pid = child.0.id().to_string();
    let file = dir.path().join("ebbtide.prom");
    let name = file.display().to_string();
    for args in [&[pid.as_str()][..], &[&pid, "--textfile", &name]] {
        let Some(mut command) = metrics(args) else {
            return;
        };
        let output = command.output().expect("ebbtide metrics");
        assert!(output.status.success(), "{output:?}");
        let text = match args.len() {
            1 => String::from_utf8(output.stdout).expect("text"),
            _ => std::fs::read_to_string(&file).expect("the file"),
        };
        let label = format!("pid=\"{pid}\",process=\"python3\"");
        for family in ["ebbtide_live_bytes", "ebbtide_resident_bytes"] {
            let bytes = sample(&text, family, &label);
            assert!((100 << 20..200 << 20).contains(&bytes), "{family} {bytes}");
        }
        assert!(text.ends_with("\n# EOF\n"));
        let is_classic = text.contains("# TYPE ebbtide_released_bytes_total counter");
        assert_eq!(is_classic, args.len() > 1);
    }
    let own = std::process::id().to_string();
    let output = metrics(&[&own])
        .expect("built")
        .output()
        .expect("ebbtide metrics");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("ebbtide run"),
        "{said}"
    );
}

fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("its number").port()
}

/// Sends a request and returns the answer.
fn request(port: u16, line: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(("127.0.0.1", port))?;
    write!(
        stream,
        "{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
    )?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

/// Starts `ebbtide metrics --listen` and waits until it answers.
fn server() -> Option<(Killed, u16)> {
    let port = free_port();
    let mut command = metrics(&["--listen", &format!("127.0.0.1:{port}")])?;
    let server = Killed(
        command
            .stderr(Stdio::null())
            .spawn()
            .expect("ebbtide metrics"),
    );
    until("the server answers", || {
        request(port, "HEAD /metrics").ok().map(drop)
    });
    Some((server, port))
}

fn until<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(30);
    loop {
        if let Some(found) = find() {
            return found;
        }
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn the_server_answers_and_survives_its_clients() {
    if !only_ebbtide("keeps figures") {
        return;
    }
    let Some((_server, port)) = server() else {
        return;
    };
    let answer = request(port, "GET /metrics").expect("an answer");
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.contains("openmetrics-text; version=1.0.0"),
        "{answer}"
    );
    for line in ["GET /", "POST /metrics", "GET /metrics/x"] {
        assert!(
            request(port, line)
                .expect("an answer")
                .starts_with("HTTP/1.1 404"),
            "{line}"
        );
    }
    for garbage in ["\0\0\r\n\r\n", "GET /metrics HTTP/9\r\n\r\n", ""] {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
        stream.write_all(garbage.as_bytes()).expect("sent");
    }
    assert!(
        request(port, "GET /metrics")
            .expect("an answer")
            .contains("# EOF")
    );
}

/// A client that reads no answers costs only its own.
#[test]
fn a_client_that_never_reads_does_not_stop_the_server() {
    if !only_ebbtide("keeps figures") {
        return;
    }
    let Some((_server, port)) = server() else {
        return;
    };
    let mut deaf = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    deaf.set_write_timeout(Some(Duration::from_secs(2)))
        .expect("a limit");
    let requests = "GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(3000);
    // The server may stop to read.
    let _ = deaf.write_all(requests.as_bytes());
    std::thread::sleep(Duration::from_secs(5));
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    let limit = Some(Duration::from_secs(15));
    stream.set_read_timeout(limit).expect("a limit");
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
        .expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    assert!(answer.contains("# EOF"));
}

/// Idle clients may use up all descriptors; the server goes on when they leave.
#[test]
fn idle_clients_do_not_end_the_server() {
    let Some(path) = command_line().filter(|_| only_ebbtide("keeps figures")) else {
        return;
    };
    let port = free_port();
    let line = format!(
        "ulimit -n 64; exec '{}' metrics --listen 127.0.0.1:{port}",
        path.display()
    );
    let mut sh = Command::new("sh");
    sh.args(["-c", &line]).env_remove("EBBTIDE_CONF");
    let mut server = Killed(sh.stderr(Stdio::null()).spawn().expect("sh"));
    until("the server answers", || {
        request(port, "HEAD /metrics").ok().map(drop)
    });
    let idle: Vec<_> = (0..80)
        .map_while(|_| TcpStream::connect(("127.0.0.1", port)).ok())
        .collect();
    std::thread::sleep(Duration::from_secs(1));
    let ended = server.0.try_wait().expect("its state");
    assert!(ended.is_none(), "{ended:?} with {} clients", idle.len());
    drop(idle);
    until("the server answers again", || {
        request(port, "GET /metrics")
            .ok()
            .filter(|text| text.contains("# EOF"))
    });
}

#[test]
fn prometheus_scrapes_and_the_dashboard_finds_its_figures() {
    if !ensure_installed("prometheus", "prometheus") || !ensure_installed("promtool", "prometheus")
    {
        return;
    }
    let dir = directory();
    let Some(child) = holder(dir.path()) else {
        return;
    };
    let Some((_server, port)) = server() else {
        return;
    };
    let lines = [
        "global: {scrape_interval: 1s}",
        "scrape_configs:",
        "  - job_name: ebbtide",
        &format!("    static_configs: [{{targets: ['127.0.0.1:{port}']}}]"),
    ];
    let config = dir.path().join("prometheus.yml");
    std::fs::write(&config, lines.join("\n")).expect("the configuration");
    let own = free_port();
    let prometheus = Command::new("prometheus")
        .arg(format!("--config.file={}", config.display()))
        .arg(format!(
            "--storage.tsdb.path={}",
            dir.path().join("data").display()
        ))
        .arg(format!("--web.listen-address=127.0.0.1:{own}"))
        .stderr(Stdio::null())
        .spawn();
    let _prometheus = Killed(prometheus.expect("prometheus"));
    let url = format!("http://127.0.0.1:{own}");
    let query = |expression: &str| {
        let output = Command::new("promtool")
            .args(["query", "instant", &url, expression])
            .output()
            .expect("promtool");
        output
            .status
            .success()
            .then(|| String::from_utf8(output.stdout).expect("text"))
    };
    let pid = child.0.id();
    let live = until("Prometheus has the figure", || {
        query(&format!("ebbtide_live_bytes{{pid=\"{pid}\"}}")).filter(|text| text.contains("=>"))
    });
    let value = live
        .split("=> ")
        .nth(1)
        .and_then(|rest| rest.split(' ').next()?.parse::<f64>().ok());
    assert!(value.is_some_and(|bytes| bytes > 1e8), "{live}");
    until("the last scrape was in time", || {
        query("up").filter(|text| text.contains("=> 1 "))
    });

    // Two scrapes later each picture of the dashboard has data.
    std::thread::sleep(Duration::from_secs(3));
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../packaging/grafana-dashboard.json"
    );
    let board: Value =
        serde_json::from_str(&std::fs::read_to_string(path).expect(path)).expect("JSON");
    let panels = board["panels"].as_array().expect("panels");
    let targets = panels
        .iter()
        .flat_map(|panel| panel["targets"].as_array().expect("targets"));
    let mut count = 0;
    for target in targets {
        let expression = target["expr"].as_str().expect("an expression");
        let found = query(&expression.replace("$process", ".*")).expect(expression);
        // A machine may have no limit that is known.
        assert!(
            found.contains("=>") || expression.contains("limit_left"),
            "{expression}: {found}"
        );
        count += 1;
    }
    assert!(count > 10);
}
