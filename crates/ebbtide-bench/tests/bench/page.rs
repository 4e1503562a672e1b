//! The page in headless Chromium, on a phone and on a desk, light and dark. It is made from the results in `examples`.
//!
//! `return.json` there holds the points of a recorded run, and the other files hold figures made up for this test.
//! Screenshots stay in `target/tmp`.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use assert_cmd::prelude::*;

use super::program;

const WIDTHS_PX: [u32; 2] = [400, 1200];
const HEIGHT_PX: u32 = 4000;
/// Chromium's name of each colour scheme.
const SCHEMES: [(&str, &str); 2] = [("dark", "0"), ("light", "1")];

/// Looks at the page in the frame, and writes each fault as a line of `faults`.
const CHECKS: &str = r#"
addEventListener('load', () => {
  const frame = document.querySelector('iframe'), page = frame.contentDocument, view = frame.contentWindow;
  const faults = [], root = page.documentElement;
  const check = (holds, fault) => holds || faults.push(fault);
  check(root.scrollWidth <= view.innerWidth, `overflow: ${root.scrollWidth} of ${view.innerWidth} px`);
  const first = [...page.body.children].filter(e => e.tagName != 'H1').slice(0, 2);
  check(first[0]?.id == 'verdict' && first[1]?.querySelector('table'), 'verdict: not first');
  check(view.matchMedia('(prefers-color-scheme: dark)').matches == IS_DARK, 'scheme: not the one wanted');
  for (const image of page.querySelectorAll('svg, img')) {
    const text = image.querySelector('title')?.textContent && image.querySelector('desc')?.textContent;
    check(image.alt || text, 'no alternative text');
  }
  const light = colour => {
    const [r, g, b] = colour.match(/[\d.]+/g).map(v => v / 255).map(v => v <= .04 ? v / 12.9 : ((v + .055) / 1.055) ** 2.4);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const ground = light(view.getComputedStyle(page.body).backgroundColor);
  check((ground < .2) == IS_DARK, 'ground: not of the scheme');
  const walker = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  let count = 0;
  while (walker.nextNode()) {
    const node = walker.currentNode, parent = node.parentElement, text = node.textContent.trim();
    if (!text || ['TITLE', 'DESC', 'STYLE'].includes(parent.tagName.toUpperCase()) || !parent.getClientRects().length) continue;
    count += 1;
    const style = view.getComputedStyle(parent), svg = parent.ownerSVGElement;
    const size = parseFloat(style.fontSize) * (svg ? parent.getScreenCTM().a : 1);
    check(size >= 11, `text of ${size.toFixed(1)} px: ${text}`);
    const ink = light(svg ? style.fill : style.color);
    const contrast = (Math.max(ink, ground) + .05) / (Math.min(ink, ground) + .05);
    check(contrast >= 4.5, `contrast ${contrast.toFixed(1)}: ${text}`);
    if (svg) {
      const [inner, outer] = [parent, svg].map(e => e.getBoundingClientRect());
      check(inner.left >= outer.left - 1 && inner.right <= outer.right + 1 && inner.bottom <= outer.bottom + 1, `cut: ${text}`);
    }
  }
  check(count > 0, 'no text');
  const told = document.createElement('pre');
  told.id = 'faults';
  told.textContent = faults.join('\n') || 'none';
  document.body.append(told);
});
"#;

/// Chromium, which root installs on Debian where it is missing; none where that is not possible.
fn chromium() -> Option<&'static str> {
    static FOUND: OnceLock<bool> = OnceLock::new();
    let is_there = || {
        let version = Command::new("chromium").arg("--version").output();
        version.is_ok_and(|output| output.status.success())
    };
    // Only the download is cut short: packages are not left half installed.
    let install = "[ $(id -u) = 0 ] && [ -e /etc/debian_version ] || exit 1
        get() { timeout 15 apt-get \"$@\"; }
        wanted='install -y --no-install-recommends chromium'
        get $wanted --download-only || { get update && get $wanted --download-only; } &&
        DEBIAN_FRONTEND=noninteractive apt-get $wanted --no-download";
    let found = *FOUND.get_or_init(|| {
        is_there() || {
            let mut shell = Command::new("sh");
            shell.args(["-c", install]).stdin(Stdio::null());
            let _ = shell.stdout(Stdio::null()).stderr(Stdio::null()).status();
            is_there()
        }
    });
    if !found {
        eprintln!("skipped: no chromium");
    }
    found.then_some("chromium")
}

/// A page that shows another one in a frame of this width: a window of Chromium is never as narrow as a phone.
fn framed(page: &str, width_px: u32, is_dark: bool) -> String {
    let page = page.replace('&', "&amp;").replace('"', "&quot;");
    let checks = CHECKS.replace("IS_DARK", &is_dark.to_string());
    format!(
        "<!DOCTYPE html><meta charset=\"utf-8\"><body style=\"margin:0\"><script>{checks}</script>\
         <iframe style=\"border:0;display:block\" width=\"{width_px}\" height=\"{HEIGHT_PX}\" srcdoc=\"{page}\"></iframe>"
    )
}

/// Chromium's output for a file.
fn shown(chromium: &str, dir: &Path, scheme: &str, file: &Path, flags: &[String]) -> String {
    let mut command = Command::new("timeout");
    command.args([
        "60",
        chromium,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-quic",
    ]);
    command.args([
        "--no-first-run",
        "--disable-background-networking",
        "--disable-component-update",
    ]);
    command.args([
        "--disable-sync",
        "--hide-scrollbars",
        "--virtual-time-budget=2000",
    ]);
    command.arg(format!("--user-data-dir={}", dir.join("profile").display()));
    command.arg(format!("--blink-settings=preferredColorScheme={scheme}"));
    let output = command.args(flags).arg(file).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// What [`CHECKS`] found in a page.
fn faults(chromium: &str, page: &str, width_px: u32, (name, scheme): (&str, &str)) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("framed.html");
    fs::write(&file, framed(page, width_px, name == "dark")).unwrap();
    let flags = [
        "--dump-dom".into(),
        format!("--window-size={},800", width_px.max(500)),
    ];
    let dom = shown(chromium, dir.path(), scheme, &file, &flags);
    let (_, faults) = dom.rsplit_once("<pre id=\"faults\">").expect(&dom);
    faults.split("</pre>").next().unwrap().into()
}

fn page() -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("page.html");
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/bench/examples");
    let files = fs::read_dir(examples).unwrap();
    let files = files.map(|entry| entry.unwrap().path());
    let examples = files.filter(|file| file.extension().is_some_and(|e| e == "json"));
    // One family was measured in part.
    program(&["report", "--out"])
        .arg(&file)
        .arg("--from")
        .args(examples)
        .assert()
        .code(1);
    fs::read_to_string(file).unwrap()
}

#[test]
fn the_page_is_readable_on_a_phone_and_in_the_dark() {
    let page = page();
    for text in [
        "On this machine: parallel free, clustered refill and partial depopulation help; lazy free makes no difference \
         beyond the noise; asynchronous release at exit was not measured.",
        "not measured: no helper was made",
        "percpu: left out: not chosen",
        "The best is glibc: its median figure is ",
        "Not drawn: ms in free() (lower is better); noise ±20.0 %: every difference is within the noise",
        "Not drawn: Swap in use over time, MiB (lower is better): all values are 0",
        "c0 continued\"",
        "jemalloc, background 1 s",
    ] {
        assert!(page.contains(text), "no {text}: {page}");
    }
    for id in [
        "mix_random",
        "exit_4k",
        "final_ratio",
        "jemalloc-bg-1s\"",
        "dev=depopulate",
        "http:",
        "https:",
    ] {
        assert!(!page.contains(id), "{id}");
    }
    let Some(chromium) = chromium() else { return };
    for scheme in SCHEMES {
        for width_px in WIDTHS_PX {
            let found = faults(chromium, &page, width_px, scheme);
            assert_eq!(found, "none", "at {width_px} px, {}", scheme.0);
            let picture = screenshot(chromium, &page, width_px, scheme);
            assert!(
                fs::read(&picture).unwrap().starts_with(b"\x89PNG"),
                "{}",
                picture.display()
            );
        }
    }
}

fn screenshot(chromium: &str, page: &str, width_px: u32, (name, scheme): (&str, &str)) -> PathBuf {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("framed.html");
    fs::write(&file, framed(page, width_px, name == "dark")).unwrap();
    let picture =
        Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("page-{width_px}-{name}.png"));
    let _ = fs::remove_file(&picture);
    let size = format!("--window-size={},{HEIGHT_PX}", width_px.max(500));
    let flags = [format!("--screenshot={}", picture.display()), size];
    shown(chromium, dir.path(), scheme, &file, &flags);
    picture
}

/// Each fault is planted once.
#[test]
fn faults_of_a_page_are_found() {
    let Some(chromium) = chromium() else { return };
    let page = "<body style='background:#fff;color:#999'><p>first</p><p id=verdict>x</p><svg viewBox='0 0 400 20' width=100>\
        <text y=9>small</text></svg><div style='width:2000px'>wide</div></body>";
    let found = faults(chromium, page, 400, SCHEMES[0]);
    for fault in [
        "overflow: ",
        "verdict: not first",
        "no alternative text",
        "ground: not of the scheme",
        "px: small",
        "contrast 2.8: wide",
    ] {
        assert!(found.contains(fault), "no {fault}: {found}");
    }
}
