//! Tests real programs under the library: servers, databases, compilers, tools. Each checks its own result. Missing
//! programs are installed (root, Debian) or skipped.

use std::fmt::Write;
use std::path::Path;

use ebbtide_tests::{Outcome, Run, ensure_installed};
use tempfile::TempDir;

fn scratch() -> TempDir {
    tempfile::tempdir().expect("temporary directory")
}

/// Runs a shell script with `set -e`, in which every program is preloaded.
fn script(dir: &Path, text: &str) -> Outcome {
    let text = format!("set -e\n{text}");
    Run::new("sh").arg("-c").arg(text).dir(dir).timeout(90).ok()
}

#[test]
fn redis() {
    if !ensure_installed("redis-server", "redis-server")
        || !ensure_installed("redis-benchmark", "redis-tools")
    {
        return;
    }
    let dir = scratch();
    let outcome = script(
        dir.path(),
        r#"
        redis-server --port 0 --unixsocket ./s --save '' --appendonly no --io-threads 2 > log &
        pid=$!
        for i in $(seq 100); do redis-cli -s ./s ping > /dev/null 2>&1 && break; sleep 0.05; done
        redis-benchmark -s ./s -q -n 20000 -c 20 -P 8 -r 5000 -d 300 -t set,get,lpush,hset > bench
        redis-cli -s ./s flushall
        redis-cli -s ./s eval 'for i=1,20000 do redis.call("set","k"..i,string.rep(i%10,i%3000)) end return 1' 0
        redis-cli -s ./s bgsave
        redis-cli -s ./s eval 'local n=0 for i=1,20000 do local v=redis.call("get","k"..i)
            if v~=string.rep(i%10,i%3000) then return -i end n=n+#v end return n' 0 > sum
        echo "sum $(cat sum) size $(redis-cli -s ./s dbsize)"
        redis-cli -s ./s debug reload > /dev/null 2>&1 || true
        redis-cli -s ./s shutdown nosave || true
        wait $pid
        "#,
    );
    let sum: u32 = (1..=20000).map(|i| i % 3000).sum();
    let want = format!("sum {sum} size 20000");
    assert!(
        outcome.stdout.contains(&want),
        "{}",
        outcome.describe(&format!("should say {want}"))
    );
}

#[test]
fn sqlite() {
    if !ensure_installed("sqlite3", "sqlite3") {
        return;
    }
    let dir = scratch();
    let sql = "
        pragma journal_mode=wal;
        create table t(id integer primary key, word text, n integer);
        with recursive c(x) as (select 1 union all select x+1 from c where x<200000)
            insert into t select x, hex(x*7919) || printf('%0*d', x%50, x), x%1000 from c;
        create index i on t(word);
        select count(*), sum(n), count(distinct n) from t;
        delete from t where id%3=0;
        vacuum;
        select count(*), max(length(word))>40 from t where word in (select word from t);
        pragma integrity_check;
    ";
    let outcome = Run::new("sqlite3")
        .arg("x.db")
        .stdin(sql)
        .dir(dir.path())
        .ok();
    assert_eq!(outcome.stdout, "wal\n200000|99900000|1000\n133334|1\nok\n");
}

#[test]
fn git() {
    if !ensure_installed("git", "git") {
        return;
    }
    let dir = scratch();
    let outcome = script(
        dir.path(),
        r#"
        export HOME=$PWD GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
        git init -q -b main one; cd one
        for i in $(seq 40); do
            for j in 1 2 3 4 5 6; do seq $i $((i * j * 60)) > file$j; done
            git add .; git commit -q -m "$i"
        done
        cd ..; git clone -q --no-local one two; cd two
        git repack -q -a -d -f --threads=2
        git fsck --strict --full 2> /dev/null
        echo "commits $(git rev-list --count HEAD) $(git diff --stat HEAD~20 | tail -1 | cut -d, -f1)"
        "#,
    );
    assert!(
        outcome.stdout.ends_with("commits 40  6 files changed\n"),
        "{}",
        outcome.describe("differs")
    );
}

#[test]
fn gcc_builds_a_program() {
    if !ensure_installed("gcc", "gcc") {
        return;
    }
    let dir = scratch();
    let mut main = String::from("#include <stdio.h>\n");
    let mut expected: u64 = 1;
    for file in 0..6u64 {
        let mut text =
            String::from("#include <stdint.h>\n#include <stdlib.h>\n#include <string.h>\n");
        for f in 0..120u64 {
            let (a, b) = (file * 31 + f + 3, f * 17 + 1);
            let _ = writeln!(
                text,
                "static uint64_t f{f}(uint64_t x) {{ struct {{ uint64_t a[4]; char *s; }} v = {{ {{ x, x + {a}, 0, 1 }}, \
                 calloc(1, 64) }}; for (int i = 0; i < {}; i++) {{ v.a[2] += v.a[0] * {a} + (v.a[1] ^ {b}); \
                 switch (i & 3) {{ case 1: v.a[3] += 3; break; case 2: v.s[i & 63]++; break; default: v.a[3] ^= 5; }} }} \
                 free(v.s); return x * {a} + {b}; }}",
                f % 9
            );
            expected = expected.wrapping_mul(a).wrapping_add(b);
        }
        let _ = write!(text, "uint64_t g{file}(uint64_t x) {{ ");
        for f in 0..120 {
            let _ = write!(text, "x = f{f}(x); ");
        }
        text.push_str("return x; }\n");
        std::fs::write(dir.path().join(format!("g{file}.c")), text).expect("write");
        let _ = writeln!(main, "unsigned long g{file}(unsigned long);");
    }
    main.push_str("int main(void) { unsigned long x = 1; ");
    for file in 0..6 {
        let _ = write!(main, "x = g{file}(x); ");
    }
    main.push_str("printf(\"%lu\\n\", x); return 0; }\n");
    std::fs::write(dir.path().join("main.c"), main).expect("write");
    let outcome = script(
        dir.path(),
        "for i in 0 1 2 3 4 5; do gcc -O2 -g -c g$i.c; done; gcc -O2 main.c g?.o -o it; ./it",
    );
    assert_eq!(outcome.stdout.trim(), expected.to_string());
}

const CPP: &str = r#"
#include <algorithm>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <regex>
#include <string>
#include <unordered_map>
#include <vector>
struct alignas(128) Wide { long v[16]; };
static long part(int seed) {
    std::unordered_map<std::string, std::vector<int>> words;
    for (int i = 0; i < 30000; i++) words["w" + std::to_string((i * 7 + seed) % 4000)].push_back(i);
    long n = 0;
    for (auto &w : words) n += w.second.size();
    std::vector<std::unique_ptr<Wide>> wide;
    for (int i = 0; i < 1000; i++) {
        wide.push_back(std::make_unique<Wide>());
        if (reinterpret_cast<unsigned long>(wide.back().get()) % 128) return -1;
    }
    std::regex re("w([0-9]+)");
    std::smatch m;
    for (int i = 0; i < 300; i++) { std::string s = "w" + std::to_string(i); if (std::regex_match(s, m, re)) n += std::stol(m[1]); }
    try { throw std::runtime_error(std::string(1000, 'x')); } catch (std::exception &e) { n += std::string(e.what()).size(); }
    return n;
}
int main() {
    std::vector<std::future<long>> all;
    for (int i = 0; i < 8; i++) all.push_back(std::async(std::launch::async, part, i));
    long sum = 0;
    for (auto &f : all) sum += f.get();
    std::cout << sum << std::endl;
}
"#;

#[test]
fn gpp_builds_a_program() {
    if !ensure_installed("g++", "g++") {
        return;
    }
    let dir = scratch();
    std::fs::write(dir.path().join("x.cpp"), CPP).expect("write");
    let outcome = script(dir.path(), "g++ -std=c++17 -O1 -pthread x.cpp -o it; ./it");
    let part: u64 = 30000 + (0..300).sum::<u64>() + 1000;
    assert_eq!(outcome.stdout.trim(), (8 * part).to_string());
}

#[test]
fn parallel_sort_agrees() {
    if !ensure_installed("sort", "coreutils") {
        return;
    }
    let dir = scratch();
    let mut text = String::with_capacity(101 << 20);
    let mut x: u64 = 88172645463325252;
    while text.len() < 100 << 20 {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        let _ = writeln!(text, "{x:x} {:0width$}", x % 97, width = (x % 60) as usize);
    }
    std::fs::write(dir.path().join("in"), text).expect("write");
    let sort = |out: &str| {
        Run::new("sort")
            .args("--parallel=4 -S 150M in -o")
            .arg(out)
            .env("LC_ALL", "C")
            .dir(dir.path())
            .timeout(90)
    };
    sort("ours").ok();
    sort("plain").plain().ok();
    Run::new("cmp")
        .args("ours plain")
        .plain()
        .dir(dir.path())
        .ok();
}
