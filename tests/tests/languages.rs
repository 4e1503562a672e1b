//! Tests language runtimes under the library: Python with parts of its own test suite, Perl, Node, Java, shells.

use std::path::Path;

use ebbtide_tests::{Run, ensure_installed, skip};

fn scratch() -> tempfile::TempDir {
    tempfile::tempdir().expect("temporary directory")
}

/// The real interpreter (not a shim script) of a Python that has its own test suite.
fn python() -> Option<String> {
    let probe = "import sys, test.test_dict, test.libregrtest; print(sys.executable)";
    ["python3", "/usr/bin/python3"].iter().find_map(|name| {
        if !Path::new(name).is_absolute() && !ebbtide_tests::have(name) {
            return None;
        }
        let outcome = Run::new(name).arg("-c").arg(probe).plain().run();
        outcome
            .status
            .success()
            .then(|| outcome.stdout.trim().to_owned())
    })
}

/// Runs modules of Python's own test suite. A module that also fails without the library does not count. (The ignored
/// test needs files that an installed Python lacks.)
fn python_tests(modules: &[&str]) {
    let Some(python) = python() else {
        return skip("no python3 with its test suite");
    };
    let dir = scratch();
    for module in modules {
        let run = || {
            Run::new(&python)
                .args("-m test -q --timeout 300 -i test_import_from_another_thread")
                .arg(module)
                .env("PYTHONMALLOC", "malloc")
                .dir(dir.path())
                .timeout(310)
        };
        let Err(why) = run().run().verdict() else {
            continue;
        };
        if run().plain().run().verdict().is_err() {
            skip(&format!("python's {module} fails without the library too"));
        } else {
            panic!("python's {module}: {why}");
        }
    }
}

#[test]
fn python_data_types() {
    python_tests(&[
        "test_dict",
        "test_list",
        "test_json",
        "test_deque",
        "test_bytes",
        "test_array",
    ]);
}

#[test]
fn python_threads_and_forks() {
    python_tests(&[
        "test_thread",
        "test_threading",
        "test_fork1",
        "test_gc",
        "test_mmap",
    ]);
}

#[test]
fn python_subprocess() {
    python_tests(&["test_subprocess"]);
}

#[test]
fn python_multiprocessing() {
    let Some(python) = python() else {
        return skip("no python3 with its test suite");
    };
    let text = r#"
import multiprocessing as mp
def f(n): return sum(len(str(i) * (i % 50)) for i in range(n))
if __name__ == "__main__":
    want = f(3000)
    for method in ("spawn", "fork", "forkserver"):
        with mp.get_context(method).Pool(3) as pool:
            assert pool.map(f, [3000] * 12) == [want] * 12, method
    print("ok")
"#;
    let dir = scratch();
    std::fs::write(dir.path().join("pool.py"), text).expect("write");
    let outcome = Run::new(python).arg("pool.py").dir(dir.path()).ok();
    assert_eq!(outcome.stdout, "ok\n");
}

#[test]
fn perl() {
    if !ensure_installed("perl", "perl") {
        return;
    }
    let text = r#"
my %h; for my $i (1..200000) { $h{"key$i"} = "x" x ($i % 100); }
my $n = 0; $n += length $h{$_} for sort keys %h;
delete $h{"key$_"} for grep { $_ % 2 } 1..200000;
my $s = join ",", map { $_ * 2 } 1..50000; my $c = () = $s =~ /\d+/g;
my $pid = open(my $f, "-|", "echo child") or die; my $l = <$f>; close $f;
print "$n ", scalar(keys %h), " $c $l";
"#;
    let outcome = Run::new("perl").arg("-e").arg(text).ok();
    assert_eq!(outcome.stdout, "9900000 100000 50000 child\n");
}

#[test]
fn node() {
    if !ensure_installed("node", "nodejs") {
        return;
    }
    let text = r#"
const { Worker, isMainThread, parentPort } = require('worker_threads');
const zlib = require('zlib'), cp = require('child_process');
function work() {
  let n = 0;
  for (let i = 0; i < 300; i++) {
    const b = Buffer.alloc(1000 + i * 997, i & 255);
    n += zlib.gunzipSync(zlib.gzipSync(b)).length;
    n += JSON.parse(JSON.stringify({ a: Array(i).fill('x'.repeat(i)) })).a.length;
  }
  return n;
}
if (isMainThread) {
  const all = [0, 1, 2].map(() => new Promise((ok, no) => {
    const w = new Worker(__filename); w.on('message', ok); w.on('error', no); }));
  Promise.all(all).then(r => {
    const out = cp.execSync('echo child').toString().trim();
    console.log(r.every(x => x === work()) ? 'same' : 'differ', r[0], out);
  });
} else parentPort.postMessage(work());
"#;
    let dir = scratch();
    std::fs::write(dir.path().join("x.js"), text).expect("write");
    let outcome = Run::new("node").arg("x.js").dir(dir.path()).ok();
    let bytes: u64 = (0..300).map(|i| 1000 + i * 997 + i).sum();
    assert_eq!(outcome.stdout, format!("same {bytes} child\n"));
}

#[test]
fn java() {
    if !ensure_installed("java", "default-jdk-headless") {
        return;
    }
    Run::new("java").arg("-version").ok();
    if !ensure_installed("javac", "default-jdk-headless") {
        return;
    }
    let text = r#"
import java.nio.ByteBuffer;
import java.util.*;
import java.util.concurrent.*;
import java.util.zip.*;
public class X {
  static long work(int seed) throws Exception {
    long n = 0;
    for (int i = 0; i < 60; i++) {
      ByteBuffer direct = ByteBuffer.allocateDirect(10000 + i * 1000);
      for (int k = 0; k < direct.capacity(); k += 100) direct.put(k, (byte) (k + seed));
      CRC32 crc = new CRC32(); crc.update(direct);
      Deflater d = new Deflater(); d.setInput(new byte[20000]); d.finish();
      n += d.deflate(new byte[30000]); d.end();
      n += direct.capacity();
    }
    return n;
  }
  public static void main(String[] a) throws Exception {
    ExecutorService pool = Executors.newFixedThreadPool(8);
    List<Future<Long>> all = new ArrayList<>();
    for (int i = 0; i < 32; i++) { int s = i; all.add(pool.submit(() -> work(s))); }
    Set<Long> results = new HashSet<>();
    for (Future<Long> f : all) results.add(f.get());
    pool.shutdown();
    int code = 0;
    for (int i = 0; i < 5; i++) code += new ProcessBuilder("sh", "-c", "exit 3").start().waitFor();
    System.out.println(results.size() + " " + code);
  }
}
"#;
    let dir = scratch();
    std::fs::write(dir.path().join("X.java"), text).expect("write");
    let outcome = Run::new("java")
        .arg("-Xmx256m")
        .arg("X.java")
        .dir(dir.path())
        .timeout(90)
        .ok();
    assert_eq!(outcome.stdout, "1 15\n");
}

/// Its extensions are libraries that it opens with `RTLD_DEEPBIND`.
#[test]
fn php() {
    if !ensure_installed("php", "php-cli php-mbstring php-xml php-mysql") {
        return;
    }
    let text = r#"
$dir = preg_quote(ini_get('extension_dir'));
preg_match_all("~ $dir/(\\w+)\\.so$~m", file_get_contents('/proc/self/maps'), $found);
$extensions = count(array_unique($found[1]));
$n = 0;
for ($i = 0; $i < 20000; $i++) $a["key$i"] = str_repeat(chr(65 + $i % 26), $i % 300);
foreach ($a as $k => $v) $n += strlen($v);
$n += strlen(serialize($a)) - strlen(serialize(unserialize(serialize($a))));
if (function_exists('mb_strtoupper')) $n += mb_strlen(mb_convert_encoding(str_repeat('äß', 50000), 'UTF-16', 'UTF-8'), 'UTF-16') - 100000;
if (class_exists('DOMDocument')) {
    $d = new DOMDocument;
    $d->loadXML('<a>' . str_repeat('<b c="d">text</b>', 5000) . '</a>');
    $n += $d->getElementsByTagName('b')->length - 5000;
    $n += (new DOMXPath($d))->query('//b[@c="d"]')->length - 5000;
}
if (class_exists('mysqli')) { mysqli_report(MYSQLI_REPORT_OFF); $n += @mysqli_connect('127.0.0.1', 'u', 'p', 'd', 1) ? 1 : 0; }
if (class_exists('PDO')) try { new PDO('mysql:unix_socket=/no/such/socket'); $n++; } catch (PDOException $e) {}
if (function_exists('iconv')) $n += strlen(iconv('UTF-8', 'ISO-8859-1//TRANSLIT', str_repeat('é', 10000))) - 10000;
$n += token_name(T_STRING) == 'T_STRING' ? 0 : 1;
echo $n, ' ', trim(shell_exec('echo child')), ' ', $extensions > 4 ? 'extensions' : "only $extensions extensions", "\n";
"#;
    let outcome = Run::new("php").arg("-r").arg(text).ok();
    let bytes: u32 = (0..20000).map(|i| i % 300).sum();
    assert_eq!(outcome.stdout, format!("{bytes} child extensions\n"));
}

/// dash allocates in its vfork children.
#[test]
fn shells() {
    let text = r#"
n=0; i=0
while [ $i -lt 300 ]; do n=$((n + $(echo $i | cat))); i=$((i + 1)); done
x=$(seq 20000 | tr '\n' ' '); set -- $x
y=$(printf '%s\n' "$@" | sort -rn | head -1)
( sleep 0; exit 3 ) & wait $! || z=$?
echo "$n $# $y $z"
"#;
    for shell in ["dash", "bash"] {
        if ensure_installed(shell, shell) {
            let outcome = Run::new(shell).arg("-c").arg(text).ok();
            assert_eq!(outcome.stdout, "44850 20000 20000 3\n", "{shell}");
        }
    }
}
