//! Runs of `c/soak.c`: everything at once, in configurations that a seed chooses.
//!
//! A few seconds each; with `EBBTIDE_TEST_LONG`, a hundred of them. A run that fails names its seed and configuration:
//! `EBBTIDE_TEST_SEED` begins there.

use ebbtide_tests::{Run, c_program};

/// Values of each item, and how many of eight configurations have it.
const KEYS: [(&str, &[&str], u64); 19] = [
    ("lazyfree=", &["always", "always", "off", "auto"], 7),
    ("retain_ms=", &["0", "0", "1", "5", "20"], 7),
    ("dev=lazy_ms:", &["0", "1", "10", "50"], 6),
    ("thp=", &["on", "off"], 5),
    ("dev=zones:", &["1", "2", "3", "4"], 5),
    ("workers=", &["0", "1", "2", "4"], 6),
    ("dev=gather:", &["inline"], 2),
    ("dev=cluster:", &["off"], 1),
    ("rseq=", &["off"], 2),
    ("dev=depopulate:", &["off"], 1),
    ("dev=threshold:", &["1", "512", "4096"], 2),
    ("limit=", &["0", "1m", "16m"], 2),
    ("dev=retain_max:", &["0", "1m", "16m"], 2),
    ("syscalls=", &["basic"], 1),
    ("exit=", &["detached"], 1),
    ("dev=percpu_units:", &["1", "4", "8"], 2),
    ("pressure=", &["off"], 2),
    ("dev=lockstat:", &["on"], 1),
    ("harden=", &["on"], 2),
];

/// Numbers that a seed decides (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ x >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ x >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (x ^ x >> 31) % bound
    }

    fn of<'a>(&mut self, values: &[&'a str]) -> &'a str {
        values[self.below(values.len() as u64) as usize]
    }
}

fn configuration(numbers: &mut Numbers) -> String {
    let mut conf = Vec::new();
    for (key, values, eighths) in KEYS {
        if numbers.below(8) < eighths {
            conf.push(format!("{key}{}", numbers.of(values)));
        }
    }
    // One that leaves no room for workers and a helper says so where they are asked for.
    if conf.iter().any(|item| item == "syscalls=basic") {
        conf.retain(|item| !item.starts_with("workers=") && !item.starts_with("exit="));
    }
    conf.join(",")
}

fn soak(seed: u64) {
    let mut numbers = Numbers(seed);
    let conf = configuration(&mut numbers);
    let threads = numbers.of(&["1", "2", "4", "8"]);
    let live = numbers.of(&["64", "128", "256"]);
    let args = format!("seed={seed} threads={threads} live={live} seconds=3");
    let run = Run::new(c_program("soak")).args(&args).timeout(150);
    run.conf(&conf).ok();
}

#[test]
fn everything_at_once() {
    let number = |name: &str| std::env::var(name).ok()?.parse().ok();
    let first = number("EBBTIDE_TEST_SEED").unwrap_or(1);
    let is_long = std::env::var_os("EBBTIDE_TEST_LONG").is_some();
    for seed in first..first + if is_long { 100 } else { 6 } {
        soak(seed);
    }
}
