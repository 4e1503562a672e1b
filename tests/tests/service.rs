//! `ebbtide service`: drop-ins for units of systemd under a root of the test's own, read by systemd's own programs.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::Path;
use std::process::{Command, Output};

use ebbtide_tests::{command_line, ensure_installed, is_root, library, only_ebbtide, skip};
use tempfile::TempDir;

/// A root with the library, a program, and units. `None`: something is missing.
struct Root(TempDir);

const NOBODY: u32 = 65534;
const LIBRARY: &str = "/usr/lib/libebbtide.so.0";

impl Root {
    fn new() -> Option<Self> {
        let library = library().filter(|_| only_ebbtide("has services"))?;
        let root = Root(tempfile::tempdir().expect("temporary directory"));
        for dir in [
            "usr/lib",
            "usr/bin",
            "etc/systemd/system",
            "usr/lib/systemd/system",
        ] {
            fs::create_dir_all(root.at(dir)).expect("a directory");
        }
        fs::copy(library, root.at("usr/lib/libebbtide.so.0.9.9")).expect("a library");
        symlink("libebbtide.so.0.9.9", root.at("usr/lib/libebbtide.so.0")).expect("a link");
        symlink("libebbtide.so.0", root.at("usr/lib/libebbtide.so")).expect("a link");
        fs::copy("/bin/sleep", root.at("usr/bin/sleep")).expect("a program");
        root.unit("web", "User=daemon\n");
        Some(root)
    }

    fn at(&self, path: &str) -> std::path::PathBuf {
        self.0.path().join(path)
    }

    fn unit(&self, name: &str, lines: &str) {
        let text =
            format!("[Unit]\nDescription=A test\n[Service]\nExecStart=/usr/bin/sleep 60\n{lines}");
        let file = self.at(&format!("usr/lib/systemd/system/{name}.service"));
        fs::write(file, text).expect("a unit");
    }

    fn service(&self, words: &[&str]) -> Option<Output> {
        let mut command = Command::new(command_line()?);
        command
            .arg("service")
            .args(words)
            .arg("--root")
            .arg(self.0.path());
        command.env_remove("EBBTIDE_CONF").env_remove("EBBTIDE_LIB");
        Some(command.output().expect("ebbtide service"))
    }

    fn drop_in(&self, name: &str) -> std::path::PathBuf {
        self.at(&format!("etc/systemd/system/{name}.service.d/ebbtide.conf"))
    }

    /// All files with their content and all folders.
    fn state(&self) -> Vec<(String, Vec<u8>)> {
        fn collect(dir: &Path, into: &mut Vec<(String, Vec<u8>)>) {
            for entry in fs::read_dir(dir).expect("a directory") {
                let path = entry.expect("an entry").path();
                into.push((
                    path.display().to_string(),
                    fs::read(&path).unwrap_or_default(),
                ));
                if path.is_dir() {
                    collect(&path, into);
                }
            }
        }
        let mut state = Vec::new();
        collect(&self.at("etc"), &mut state);
        collect(&self.at("usr"), &mut state);
        state.sort();
        state
    }
}

fn said(output: &Output) -> String {
    String::from_utf8_lossy(&[&output.stdout[..], &output.stderr].concat()).into_owned()
}

#[test]
fn enable_status_and_disable_leave_no_trace() {
    let Some(root) = Root::new() else { return };
    let before = root.state();
    let Some(output) = root.service(&["status", "web"]) else {
        return;
    };
    assert_eq!(output.status.code(), Some(1), "{}", said(&output));
    assert!(
        said(&output).contains("web.service: not enabled"),
        "{}",
        said(&output)
    );

    let steps: [(&[&str], &str); 6] = [
        (&["enable", "web"], "written: "),
        (&["status", "web.service"], "enabled by "),
        (
            &[
                "enable",
                "web",
                "--conf",
                "limit=50%",
                "--conf",
                "retain_ms=100",
            ],
            "replaced: ",
        ),
        (&["status", "web"], "enabled by "),
        (&["disable", "web"], "removed: "),
        (&["disable", "web"], "was not enabled: nothing to do"),
    ];
    for (words, expected) in steps {
        let output = root.service(words).expect("built");
        assert!(
            output.status.success() && said(&output).contains(expected),
            "{words:?}: {}",
            said(&output)
        );
        if words.contains(&"limit=50%") {
            let text = fs::read_to_string(root.drop_in("web")).expect("a drop-in");
            assert!(
                text.contains("\"EBBTIDE_CONF=limit=50%%,retain_ms=100\""),
                "{text}"
            );
            assert!(
                text.contains(&format!("\"LD_PRELOAD={LIBRARY}\"")),
                "{text}"
            );
        }
    }
    assert_eq!(root.state(), before);
}

#[test]
fn the_example_is_what_enable_writes() {
    let Some(root) = Root::new() else { return };
    root.unit("redis-server", "");
    let Some(output) = root.service(&[
        "enable",
        "redis-server",
        "--conf",
        "limit=50%,stats_dir=/run/redis",
    ]) else {
        return;
    };
    assert!(output.status.success(), "{}", said(&output));
    let example = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../packaging/systemd/ebbtide.conf"
    );
    let example = fs::read_to_string(example).expect("the example");
    assert_eq!(
        fs::read_to_string(root.drop_in("redis-server")).expect("a drop-in"),
        example
    );
}

#[test]
fn what_cannot_work_is_refused_with_a_remedy() {
    let Some(root) = Root::new() else { return };
    root.unit("own", "Environment=A=1 \\\n  LD_PRELOAD=/x.so\n");
    root.unit("file", "EnvironmentFile=-/etc/default/file\n");
    fs::create_dir_all(root.at("etc/default")).expect("a directory");
    fs::write(root.at("etc/default/file"), "LD_PRELOAD=/x.so\n").expect("a file");
    root.unit("image", "RootImage=/x.img\n");
    root.unit("static", "ExecStart=/usr/bin/static\n");
    fs::write(root.at("usr/bin/static"), b"\x7fELF and no more").expect("a file");
    root.unit("settings", "Environment=EBBTIDE_CONF=limit=1G\n");
    for (words, expected) in [
        (&["enable", "wob"][..], "no unit wob.service"),
        (&["enable", "webb"], "did you mean 'web.service'?"),
        (&["status", "wob"], "systemctl list-unit-files"),
        (&["disable", "wob"], "no unit wob.service"),
        (&["enable", "web.timer"], "give the name of a service"),
        (&["enable", "../web"], "no name of a service"),
        (
            &["enable", "own"],
            "sets LD_PRELOAD already; add the library",
        ),
        (
            &["enable", "file"],
            "etc/default/file sets LD_PRELOAD already",
        ),
        (
            &["enable", "image"],
            "RootImage=/x.img, where the library must be",
        ),
        (&["enable", "static"], "cannot be executed"),
        (
            &["enable", "settings", "--conf", "limit=2G"],
            "leave --conf out",
        ),
        (&["enable", "web", "--conf", "limit=101%"], "100%"),
        (
            &["enable", "web", "--lib", "/opt/none.so"],
            "Searched: /opt/none.so",
        ),
    ] {
        let before = root.state();
        let Some(output) = root.service(words) else {
            return;
        };
        let text = said(&output);
        assert_eq!(output.status.code(), Some(125), "{words:?}: {text}");
        assert!(
            text.contains(expected) && text.lines().count() == 1,
            "{words:?}: {text}"
        );
        assert_eq!(root.state(), before, "{words:?}");
    }
    let output = root.service(&["enable", "own", "--force"]).expect("built");
    assert!(
        output.status.success() && said(&output).contains("warning"),
        "{}",
        said(&output)
    );
    // One's own setting is kept.
    assert!(
        root.service(&["enable", "settings"])
            .expect("built")
            .status
            .success()
    );
}

#[test]
fn systemd_finds_no_fault_with_the_drop_in() {
    let Some(root) = Root::new() else { return };
    if !ensure_installed("systemd-analyze", "systemd") {
        return;
    }
    let verify = || {
        let mut command = Command::new("systemd-analyze");
        let units = root.at("usr/lib/systemd/system");
        let path = format!(
            "{}:{}",
            root.at("etc/systemd/system").display(),
            units.display()
        );
        command
            .args(["verify", "--man=no", "--recursive-errors=no"])
            .arg(units.join("web.service"));
        said(
            &command
                .env("SYSTEMD_UNIT_PATH", path)
                .output()
                .expect("systemd-analyze"),
        )
    };
    let before = verify();
    if before.contains("unrecognized option") {
        return skip("systemd is older than 250");
    }
    assert_eq!(before, "");
    let Some(output) = root.service(&["enable", "web", "--conf", "limit=50%"]) else {
        return;
    };
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(verify(), "");
    // Positive control: the file is read, and a fault in it is seen.
    let text = fs::read_to_string(root.drop_in("web")).expect("a drop-in");
    fs::write(root.drop_in("web"), text.replace("50%%\"", "50%%")).expect("a drop-in");
    let told = verify();
    assert!(told.contains("ebbtide.conf"), "{told}");
}

/// What systemd makes of the drop-in is what was meant: it starts a service, whose environment the library reads.
#[test]
fn systemd_gives_the_service_what_was_meant() {
    let Some(root) = Root::new() else { return };
    let manager = Path::new("/lib/systemd/systemd");
    if !manager.is_file() {
        skip("systemd");
        return;
    }
    let Some(output) = root.service(&[
        "enable",
        "web",
        "--conf",
        "limit=50%,stats_dir=/run/a \"b\" \\c $d",
    ]) else {
        return;
    };
    assert!(output.status.success(), "{}", said(&output));
    let dump = environment_by_systemd(manager, &root);
    assert!(dump.contains(&format!("LD_PRELOAD={LIBRARY}")), "{dump}");
    assert!(
        dump.contains("EBBTIDE_CONF=limit=50%,stats_dir=/run/a \"b\" \\c $d"),
        "{dump}"
    );
}

/// The units as systemd has read them. Its test mode does nothing as root.
fn environment_by_systemd(manager: &Path, root: &Root) -> String {
    let units = ["etc/systemd/system", "usr/lib/systemd/system"]
        .map(|dir| root.at(dir).display().to_string());
    let runtime = root.at("runtime");
    fs::create_dir(&runtime).expect("a directory");
    let mut command = Command::new(manager);
    if is_root() {
        let open = fs::Permissions::from_mode(0o755);
        fs::set_permissions(root.0.path(), open).expect("rights");
        chown(&runtime, Some(NOBODY), Some(NOBODY)).expect("an owner");
        command = Command::new("setpriv");
        command
            .args([
                &format!("--reuid={NOBODY}"),
                &format!("--regid={NOBODY}"),
                "--clear-groups",
            ])
            .arg(manager);
    }
    command.args([
        "--test",
        "--user",
        "--unit=web.service",
        "--log-target=console",
    ]);
    // The empty entry stands for the usual places.
    command.env("SYSTEMD_UNIT_PATH", format!("{}:{}:", units[0], units[1]));
    command
        .env("XDG_RUNTIME_DIR", runtime)
        .env("HOME", "/nonexistent");
    said(&command.output().expect("systemd"))
}
