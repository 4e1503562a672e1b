//! The clients of a busy phase: they send requests at a fixed rate, and time the answers.
//!
//! A request that is due while its client still waits for the last answer counts from when it was due, so a server that
//! stalls is not measured less often.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::num::NonZeroU64;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use rustix::thread::set_current_timer_slack;

use super::parameters::{Batch, Kind, Load};
use crate::outside::interrupt;

/// Maximum time for an answer.
const ANSWER: Duration = Duration::from_secs(300);
/// A wait is interrupted within this time.
const NAP: Duration = Duration::from_millis(100);

/// The result of busy phases.
#[derive(Debug, Default)]
pub struct Served {
    /// Time of each request or job.
    pub ns: Vec<u64>,
    /// The same for every copy that gave the same answers.
    pub checksum: u64,
}

impl Served {
    /// Adds another part.
    pub fn add(&mut self, other: Served) {
        self.ns.extend(other.ns);
        self.checksum = self.checksum.wrapping_add(other.checksum);
    }

    /// The time in ms below which the fraction `q` of the requests is.
    pub fn quantile_ms(&self, q: f64) -> f64 {
        let mut sorted = self.ns.clone();
        sorted.sort_unstable();
        let at = ((sorted.len() as f64 * q).ceil() as usize).clamp(1, sorted.len().max(1));
        sorted.get(at - 1).map_or(f64::NAN, |ns| *ns as f64 / 1e6)
    }
}

/// Waits until a time, or until a signal comes.
pub fn wait_until(due: Instant) -> Result<()> {
    loop {
        ensure!(interrupt::came().is_none(), "interrupted");
        let left = due.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        thread::sleep(left.min(NAP));
    }
}

/// A busy phase of this length. `cycle` tells phases of a copy apart: each has other requests.
pub fn serve(load: &Load, dir: &Path, cycle: usize, length: Duration) -> Result<Served> {
    let began = Instant::now();
    let each_s = load.clients as f64 / load.per_s;
    let count = ((length.as_secs_f64() / each_s) as usize).max(1);
    thread::scope(|scope| {
        let client = |which: usize| {
            move || -> Result<Served> {
                // The kernel would wake a client up to 50 µs late.
                set_current_timer_slack(NonZeroU64::new(1))?;
                let mut client = Client::new(load, dir, which, cycle)?;
                let shift_s = each_s * which as f64 / load.clients as f64;
                let mut served = Served::default();
                for i in 0..count {
                    let due = began + Duration::from_secs_f64(shift_s + i as f64 * each_s);
                    let is_late = Instant::now() > due;
                    wait_until(due)?;
                    let from = if is_late { due } else { Instant::now() };
                    let number = (cycle * count + i) * load.clients + which;
                    let checksum = client.request(number)?;
                    served.ns.push(from.elapsed().as_nanos() as u64);
                    served.checksum = served.checksum.wrapping_add(checksum);
                }
                Ok(served)
            }
        };
        let clients: Vec<_> = (0..load.clients)
            .map(|which| scope.spawn(client(which)))
            .collect();
        let mut served = Served::default();
        for client in clients {
            let part = client.join();
            served.add(part.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?);
        }
        Ok(served)
    })
}

/// Whether all sockets of a copy answer.
pub fn is_ready(load: &Load, dir: &Path) -> bool {
    (0..load.sockets).all(|n| {
        let socket = dir.join(format!("s{n}"));
        match load.kind {
            Kind::Http => get(&socket, "/ready").is_ok(),
            Kind::Redis(_) => Redis::new(&socket).is_ok_and(|mut redis| redis.ping().is_ok()),
        }
    })
}

/// Live bytes of a copy, if its program knows them.
pub fn live_bytes(load: &Load, dir: &Path) -> Option<u64> {
    match load.kind {
        Kind::Http => None,
        Kind::Redis(_) => Redis::new(&dir.join("s0")).ok()?.used_bytes().ok(),
    }
}

enum Client {
    Http {
        dir: PathBuf,
        sockets: usize,
    },
    Redis {
        redis: Box<Redis>,
        batch: Batch,
        random: fastrand::Rng,
    },
}

impl Client {
    fn new(load: &Load, dir: &Path, which: usize, cycle: usize) -> Result<Self> {
        Ok(match load.kind {
            Kind::Http => Client::Http {
                dir: dir.into(),
                sockets: load.sockets,
            },
            Kind::Redis(batch) => Client::Redis {
                redis: Box::new(Redis::new(&dir.join("s0"))?),
                batch,
                random: fastrand::Rng::with_seed((cycle * load.clients + which) as u64),
            },
        })
    }

    /// A request; a checksum of the answer.
    fn request(&mut self, number: usize) -> Result<u64> {
        match self {
            Client::Http { dir, sockets } => {
                let socket = dir.join(format!("s{}", number % *sockets));
                Ok(hash(&get(&socket, &format!("/{number}"))?))
            }
            Client::Redis {
                redis,
                batch,
                random,
            } => redis.batch(batch, random),
        }
    }
}

/// FNV-1a.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn connect(socket: &Path) -> Result<UnixStream> {
    let stream = UnixStream::connect(socket).context("cannot connect")?;
    stream.set_read_timeout(Some(ANSWER))?;
    stream.set_write_timeout(Some(ANSWER))?;
    Ok(stream)
}

/// The body of an answer by HTTP.
fn get(socket: &Path, path: &str) -> Result<Vec<u8>> {
    let mut stream = connect(socket)?;
    let asked = format!("GET {path} HTTP/1.0\r\nHost: fleet\r\n\r\n");
    stream.write_all(asked.as_bytes())?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).map_err(in_time)?;
    let end = answer.windows(4).position(|four| four == b"\r\n\r\n");
    let end = end.context("the answer has no body")?;
    let first = String::from_utf8_lossy(&answer[..end]);
    let status = first.split_whitespace().nth(1);
    ensure!(
        status == Some("200"),
        "{path} was answered by {}",
        first.lines().next().unwrap_or("nothing")
    );
    Ok(answer.split_off(end + 4))
}

fn in_time(error: std::io::Error) -> anyhow::Error {
    match error.kind() {
        ErrorKind::WouldBlock => {
            anyhow::anyhow!("no answer within {} s", ANSWER.as_secs())
        }
        _ => error.into(),
    }
}

/// A connection to redis.
struct Redis {
    stream: BufReader<UnixStream>,
    asked: Vec<u8>,
    value: Vec<u8>,
}

impl Redis {
    fn new(socket: &Path) -> Result<Self> {
        Ok(Redis {
            stream: BufReader::new(connect(socket)?),
            asked: Vec::new(),
            value: Vec::new(),
        })
    }

    fn command(&mut self, words: &[&[u8]]) {
        self.asked.extend(format!("*{}\r\n", words.len()).bytes());
        for word in words {
            self.asked.extend(format!("${}\r\n", word.len()).bytes());
            self.asked.extend(*word);
            self.asked.extend(b"\r\n");
        }
    }

    fn send(&mut self) -> Result<()> {
        self.stream.get_mut().write_all(&self.asked)?;
        self.asked.clear();
        Ok(())
    }

    /// The next answer, if it is a status or a string.
    fn answer(&mut self) -> Result<Vec<u8>> {
        let mut line = String::new();
        self.stream.read_line(&mut line).map_err(in_time)?;
        let line = line.trim_end();
        let Some(len) = line.strip_prefix('$') else {
            ensure!(line.starts_with('+'), "redis says: {line:?}");
            return Ok(line.as_bytes()[1..].to_vec());
        };
        let len: i64 = len.parse().context("not a length")?;
        let Ok(len) = usize::try_from(len) else {
            return Ok(Vec::new());
        };
        self.value.resize(len + 2, 0);
        self.stream.read_exact(&mut self.value).map_err(in_time)?;
        Ok(self.value[..len].to_vec())
    }

    fn ping(&mut self) -> Result<()> {
        self.command(&[b"PING"]);
        self.send()?;
        ensure!(self.answer()? == b"PONG", "no answer to PING");
        Ok(())
    }

    fn used_bytes(&mut self) -> Result<u64> {
        self.command(&[b"INFO", b"memory"]);
        self.send()?;
        let text = String::from_utf8(self.answer()?)?;
        let used = text.lines().find_map(|l| l.strip_prefix("used_memory:"));
        Ok(used.context("no used_memory")?.trim().parse()?)
    }

    /// A batch in one write. Its checksum is the number of writes that were accepted: which keys have expired varies.
    fn batch(&mut self, batch: &Batch, random: &mut fastrand::Rng) -> Result<u64> {
        static CONTENT: [u8; 1 << 16] = [b'x'; 1 << 16];
        let key = |kind: &str, number: u64| format!("{kind}:{number}").into_bytes();
        let value = |random: &mut fastrand::Rng| {
            let (least, most) = batch.value_bytes;
            let ratio = most as f64 / least as f64;
            let len = least as f64 * ratio.powf(random.f64());
            &CONTENT[..(len as usize).min(CONTENT.len())]
        };
        for _ in 0..batch.gets {
            let key = key("brief", random.u64(..batch.keys.0));
            self.command(&[b"GET", &key]);
        }
        for _ in 0..batch.expiring {
            let key = key("brief", random.u64(..batch.keys.0));
            let time = random.u64(batch.expire_s.0..batch.expire_s.1).to_string();
            self.command(&[b"SET", &key, value(random), b"EX", time.as_bytes()]);
        }
        for _ in 0..batch.lasting {
            let key = key("long", random.u64(..batch.keys.1));
            self.command(&[b"SET", &key, value(random)]);
        }
        self.send()?;
        for _ in 0..batch.gets {
            self.answer()?;
        }
        let writes = batch.expiring + batch.lasting;
        for _ in 0..writes {
            let answer = self.answer()?;
            if answer != b"OK" {
                bail!("redis says: {}", String::from_utf8_lossy(&answer));
            }
        }
        Ok(writes as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixListener;

    const LOAD: Load = Load {
        per_s: 100.0,
        clients: 2,
        sockets: 1,
        kind: Kind::Http,
    };

    /// Answers each request with its path, after a time that depends on it.
    fn server(dir: &Path, answer: fn(&str) -> (Duration, &'static str)) {
        let listener = UnixListener::bind(dir.join("s0")).unwrap();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                let mut line = String::new();
                stream.read_line(&mut line).unwrap();
                let path = line.split(' ').nth(1).unwrap();
                let (after, status) = answer(path);
                thread::sleep(after);
                let said = format!("HTTP/1.0 {status}\r\nA: b\r\n\r\n{path}");
                let _ = stream.get_mut().write_all(said.as_bytes());
            }
        });
    }

    #[test]
    fn requests_come_at_their_rate_and_differ() {
        let dir = tempfile::tempdir().unwrap();
        server(dir.path(), |_| (Duration::ZERO, "200 OK"));
        assert!(is_ready(&LOAD, dir.path()));
        assert_eq!(live_bytes(&LOAD, dir.path()), None);
        let began = Instant::now();
        let serve = |cycle| serve(&LOAD, dir.path(), cycle, Duration::from_millis(200)).unwrap();
        let first = serve(0);
        assert!(began.elapsed() >= Duration::from_millis(180));
        assert_eq!(first.ns.len(), 20);
        assert_eq!(first.checksum, serve(0).checksum);
        assert_ne!(first.checksum, serve(1).checksum);
    }

    #[test]
    fn a_stall_counts_for_the_requests_behind_it() {
        let dir = tempfile::tempdir().unwrap();
        server(dir.path(), |path| {
            let is_slow = path == "/3";
            (
                Duration::from_millis(if is_slow { 300 } else { 0 }),
                "200 OK",
            )
        });
        let one = Load { clients: 1, ..LOAD };
        let mut served = serve(&one, dir.path(), 0, Duration::from_millis(200)).unwrap();
        served.ns.sort_unstable();
        let slow = served.ns.iter().filter(|ns| **ns > 100_000_000).count();
        assert!(slow > 10, "{:?}", served.ns);
    }

    #[test]
    fn a_failure_is_no_answer() {
        let dir = tempfile::tempdir().unwrap();
        server(dir.path(), |_| (Duration::ZERO, "500 Oh"));
        let told = serve(&LOAD, dir.path(), 0, Duration::from_millis(50)).unwrap_err();
        assert!(told.to_string().contains("500"), "{told}");
        assert!(!is_ready(&LOAD, dir.path()));
    }

    #[test]
    fn quantiles_are_of_values_that_came() {
        let served = Served {
            ns: (1..=200).map(|n| n * 1_000_000).collect(),
            checksum: 0,
        };
        assert_eq!(served.quantile_ms(0.5), 100.0);
        assert_eq!(served.quantile_ms(0.99), 198.0);
        assert!(Served::default().quantile_ms(0.5).is_nan());
    }
}
