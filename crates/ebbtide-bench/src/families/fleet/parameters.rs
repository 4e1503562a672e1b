//! The parameters of the fleet, all in this file. They were committed before the first measurement (decision 0115).

use std::time::Duration;

/// Minutes for one workload with all its copies, and in a quick run.
pub const MINUTES: (f64, f64) = (10.0, 0.25);
/// Busy phases of each copy.
pub const CYCLES: usize = 3;
/// Time between two samples of a copy's memory.
pub const SAMPLE: Duration = Duration::from_secs(1);
/// Time between two questions about live bytes: as often as a monitor asks.
pub const LIVE: Duration = Duration::from_secs(15);

/// The peers: of each line the first that is installed.
pub const PEERS: [&[&str]; 4] = [
    &["jemalloc", "jemalloc-system"],
    &["jemalloc-bg", "jemalloc-system-bg"],
    &["mimalloc3", "mimalloc2-system"],
    &["tcmalloc", "gperftools-system"],
];

/// The requests of a busy phase.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Requests in a second, over all clients. A busy phase has at least one of each client.
    pub per_s: f64,
    /// Clients; each sends its next request after the answer to the last one.
    pub clients: usize,
    /// Sockets that are asked in turn.
    pub sockets: usize,
    /// What a request is.
    pub kind: Kind,
}

/// What a request is.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// `GET /N` by HTTP.
    Http,
    /// A batch of redis commands.
    Redis(Batch),
}

/// A batch of redis commands. Values are as often small as large: their sizes are equally likely on a logarithmic scale.
#[derive(Clone, Copy, Debug)]
pub struct Batch {
    /// Reads of keys that expire.
    pub gets: usize,
    /// Writes of keys that expire.
    pub expiring: usize,
    /// Writes of keys that stay.
    pub lasting: usize,
    /// Different keys that expire, and that stay.
    pub keys: (u64, u64),
    /// Seconds until a key expires: at least, and less than.
    pub expire_s: (u64, u64),
    /// Bytes of a value: at least, and less than.
    pub value_bytes: (u64, u64),
}

/// A workload.
#[derive(Debug)]
pub struct Workload {
    /// Its case.
    pub case: &'static str,
    /// Programs that it needs.
    pub needs: &'static [&'static str],
    /// A module that python3 needs, or `sys`. Empty where python3 is not needed.
    pub module: &'static str,
    /// How to get what it needs.
    pub remedy: &'static str,
    /// Files in a copy's directory, where it is started.
    pub files: &'static [(&'static str, &'static str)],
    /// The command of a copy, for sh. It listens on the sockets `s0`, `s1`, … of its directory.
    pub start: &'static str,
    /// Its environment.
    pub settings: &'static [(&'static str, &'static str)],
    /// Its requests.
    pub load: Load,
}

macro_rules! file {
    ($name:literal) => {
        ($name, include_str!(concat!("scripts/", $name)))
    };
}

const fn http(per_s: f64, clients: usize, sockets: usize) -> Load {
    Load {
        per_s,
        clients,
        sockets,
        kind: Kind::Http,
    }
}

/// All workloads.
pub static WORKLOADS: [Workload; 6] = [
    Workload {
        case: "redis",
        needs: &["redis-server"],
        module: "",
        remedy: "apt-get install redis",
        files: &[],
        start: "exec redis-server --port 0 --unixsocket s0 --save '' --appendonly no --dir . --loglevel warning",
        settings: &[],
        load: Load {
            per_s: 1500.0,
            clients: 4,
            sockets: 1,
            kind: Kind::Redis(Batch {
                gets: 4,
                expiring: 3,
                lasting: 1,
                keys: (400_000, 20_000),
                expire_s: (10, 60),
                value_bytes: (64, 4096),
            }),
        },
    },
    Workload {
        case: "web",
        needs: &["puma"],
        module: "",
        remedy: "apt-get install puma",
        files: &[file!("web.ru")],
        start: "exec puma --workers 2 --threads 4:4 --preload --environment production --bind unix://s0 web.ru",
        settings: &[
            ("ROWS", "20000"),
            ("PAGE", "300"),
            ("SESSIONS", "2000"),
            ("SESSION_S", "60"),
        ],
        load: http(40.0, 4, 1),
    },
    Workload {
        case: "node",
        needs: &["node"],
        module: "",
        remedy: "apt-get install nodejs",
        files: &[file!("node.js")],
        start: "exec node node.js",
        settings: &[
            ("WIDTH", "1600"),
            ("HEIGHT", "1200"),
            ("PICTURES", "4"),
            ("KEPT_MIB", "64"),
            ("KEPT_S", "30"),
        ],
        load: http(4.0, 2, 1),
    },
    Workload {
        case: "jobs",
        needs: &[],
        module: "pandas",
        remedy: "apt-get install python3-pandas, or pip install pandas",
        files: &[file!("serve.py"), file!("jobs.py")],
        start: "exec \"$PYTHON\" jobs.py",
        settings: &[
            ("ROWS", "1000000"),
            ("KEYS", "50000"),
            ("WRITTEN", "50000"),
            ("OPENBLAS_NUM_THREADS", "1"),
        ],
        load: http(0.25, 1, 1),
    },
    Workload {
        case: "build",
        needs: &["cc"],
        module: "sys",
        remedy: "apt-get install gcc python3",
        files: &[file!("serve.py"), file!("build.py")],
        start: "exec \"$PYTHON\" build.py",
        settings: &[
            ("FILES", "4"),
            ("AT_ONCE", "2"),
            ("FUNCTIONS", "40"),
            ("KEPT", "20"),
        ],
        load: http(0.25, 1, 1),
    },
    Workload {
        case: "sidecars",
        needs: &["awk"],
        module: "sys",
        remedy: "apt-get install python3 mawk",
        files: &[file!("serve.py"), file!("sidecar.py")],
        start: "for n in 0 1 2 3; do \"$PYTHON\" sidecar.py s$n | awk '{ sum += $2 } END { print sum }' & done; \
                while sleep 5; do :; done",
        settings: &[("LINES", "200"), ("WINDOW", "300"), ("BATCH", "25")],
        load: http(20.0, 1, 4),
    },
];
