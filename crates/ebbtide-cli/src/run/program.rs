//! Checks a program before it starts: does it exist, may it be executed, and can a preloaded library take effect in
//! it?
//!
//! `LD_PRELOAD` has no effect in three cases. A static program has no loader. A program that gains privilege runs in
//! secure mode. A program with another word size only gets a line on stderr from the loader. For a script, its
//! interpreter is checked. The texts are those of [`known`].

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use ebbtide_tools::conf::Conf;
use ebbtide_tools::machine::{are_pages_known, page_bytes};
use ebbtide_tools::program::{EXIT_OWN, Failure};
use rustix::fs::{Access, access};

use crate::elf::{self, Obstacle};
use crate::emulator::emulator;
use ebbtide_interface::{keys, known};

/// The kinds of reasons why a program is not started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// There is no such program (exit status 127).
    NotFound,
    /// It exists but cannot be executed (exit status 126).
    NotExecutable,
    /// It would run, but without Ebbtide (exit status 125; `--force` runs it).
    NoEffect,
    /// It would not work under Ebbtide (exit status 125; `--force` runs it without).
    Breaks,
}

/// The reason why a program is not started, and its remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    pub kind: Kind,
    pub text: String,
}

impl Kind {
    fn because(self, text: impl Into<String>) -> Refusal {
        Refusal {
            kind: self,
            text: text.into(),
        }
    }
}

impl From<Refusal> for anyhow::Error {
    fn from(Refusal { kind, text }: Refusal) -> Self {
        let status = match kind {
            Kind::NotFound => 127,
            Kind::NotExecutable => 126,
            Kind::NoEffect | Kind::Breaks => EXIT_OWN,
        };
        Failure { status, text }.into()
    }
}

const WITHOUT: &str = "--force runs it without Ebbtide";
const ALL_THE_SAME: &str = "--force runs it anyway";

/// Number of nested interpreters that the kernel follows.
const MAX_SCRIPT_DEPTH: u32 = 5;

/// The file that `program` names, found as `execvp` would find it.
pub fn resolve(program: &OsStr) -> Result<PathBuf, Refusal> {
    let shown = program.to_string_lossy();
    if program.is_empty() {
        return Err(Kind::NotFound.because("the program's name is empty; name a program"));
    }
    let is_path = program.as_bytes().contains(&b'/');
    let places: Vec<PathBuf> = match is_path {
        true => vec![program.into()],
        false => {
            let dirs = env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
            // An empty entry is the current directory.
            let place = |dir| Path::new(".").join(dir).join(program);
            env::split_paths(&dirs).map(place).collect()
        }
    };
    let mut unusable = None;
    for path in places {
        match is_executable(&path) {
            Some(true) => return Ok(path),
            Some(false) if is_path || path.is_file() => unusable = unusable.or(Some(path)),
            _ => {}
        }
    }
    Err(match unusable {
        Some(path) => not_executable(&path),
        None if is_path && !shown.contains([' ', '=']) => {
            Kind::NotFound.because(format!("no such program: {shown}; check the path"))
        }
        None => Kind::NotFound.because(format!("no such program: {shown}; {}", remedy(&shown))),
    })
}

/// What helps if a name is in no directory of `PATH`.
fn remedy(name: &str) -> String {
    if name.starts_with('-') {
        return "options stand before '--', and the program behind it".into();
    }
    if let Some((key, _)) = name.split_once('=') {
        let is_key = keys::key(key.as_bytes()).is_some() || key == "dev";
        return match is_key {
            true => format!("a setting stands before the program: --conf {name}"),
            false => format!("for a variable of the environment, write: env {name} PROGRAM"),
        };
    }
    if name.contains(' ') {
        return format!("leave out the quotes, or let a shell run it: sh -c '{name}'");
    }
    format!(
        "it is in no directory of PATH. Give its path, or install it (a shell builtin needs: sh -c '{name} …')"
    )
}

/// Whether a preloaded library takes effect in the program at `path`.
pub fn check(path: &Path) -> Result<(), Refusal> {
    check_at(path, 0)
}

fn check_at(path: &Path, depth: u32) -> Result<(), Refusal> {
    let shown = path.display();
    let file = File::open(path);
    // The kernel allows programs that are executable but not readable. They cannot be checked.
    let Ok(file) = file else { return Ok(()) };
    let head = elf::read_head(&file, 256);
    if head.starts_with(b"#!") {
        return check_script(path, &head, depth);
    }
    if !head.starts_with(b"\x7fELF") {
        return Err(Kind::NotExecutable.because(format!(
            "{shown} is neither a program nor a script with a '#!' line; \
             if it is a shell script, run it as: sh {shown}"
        )));
    }
    // Set-user-ID bits count on programs only: the kernel ignores them on scripts.
    if let Some(reason) = elf::gains_privilege(path, &file) {
        return Err(obstacle(path, Obstacle::new(&known::PRIVILEGE, reason)));
    }
    match elf::describe(&file) {
        Ok(None) => Ok(()),
        // The loader itself has no interpreter and honours LD_PRELOAD.
        Ok(Some(_)) if is_loader(path) => Ok(()),
        Ok(Some(found)) => Err(obstacle(path, found)),
        Err(reason) => {
            Err(Kind::NotExecutable.because(format!("{shown} cannot be executed: {reason}")))
        }
    }
}

/// Whether any program can run under Ebbtide on this machine.
pub fn check_machine(conf: &Conf) -> Result<(), Refusal> {
    let on_machine = |found: Obstacle| {
        let text = format!("this machine has {}", found.text);
        Err(Kind::Breaks.because(format!("{text}; {WITHOUT}")))
    };
    let bytes = page_bytes();
    if !are_pages_known(bytes) {
        return on_machine(Obstacle::new(&known::PAGES, &format!("{bytes} B")));
    }
    if conf.get("syscalls") != Some("basic")
        && let Some(name) = emulator()
    {
        return on_machine(Obstacle::new(&known::EMULATOR, &name));
    }
    Ok(())
}

fn obstacle(path: &Path, found: Obstacle) -> Refusal {
    let text = format!("{} is {}; {ALL_THE_SAME}", path.display(), found.text);
    Kind::NoEffect.because(text)
}

fn check_script(path: &Path, head: &[u8], depth: u32) -> Result<(), Refusal> {
    let shown = path.display();
    if depth >= MAX_SCRIPT_DEPTH {
        return Err(
            Kind::NotExecutable.because(format!("{shown}: too many interpreters of interpreters"))
        );
    }
    let (interpreter, argument) = shebang(head).ok_or_else(|| {
        Kind::NotExecutable.because(format!(
            "{shown} has an empty '#!' line; name an interpreter there"
        ))
    })?;
    let interpreter = PathBuf::from(interpreter);
    let broken = |name: &str| {
        Kind::NotExecutable.because(format!(
            "{shown} is a script whose interpreter '{name}' is missing or not executable; \
             install it or correct the '#!' line"
        ))
    };
    if is_executable(&interpreter) != Some(true) {
        return Err(broken(&interpreter.display().to_string()));
    }
    check_at(&interpreter, depth + 1).map_err(|r| of_script(path, r))?;
    // `env NAME` starts NAME, so NAME is the program to check.
    if interpreter.file_name() == Some(OsStr::new("env"))
        && let Some(name) = argument.as_deref().and_then(env_program)
    {
        let target = resolve(&name).map_err(|_| broken(&name.to_string_lossy()))?;
        check_at(&target, depth + 1).map_err(|r| of_script(path, r))?;
    }
    Ok(())
}

/// Turns an interpreter's refusal into one of the script at `path`.
fn of_script(path: &Path, refusal: Refusal) -> Refusal {
    let kind = match refusal.kind {
        Kind::NotFound => Kind::NotExecutable,
        kind => kind,
    };
    let (path, text) = (path.display(), refusal.text);
    kind.because(format!("the interpreter of {path}: {text}"))
}

/// The interpreter and its one argument from a `#!` line.
fn shebang(head: &[u8]) -> Option<(OsString, Option<OsString>)> {
    let line = head.strip_prefix(b"#!")?.split(|b| *b == b'\n').next()?;
    let line = line.trim_ascii();
    let end = line.iter().position(|b| b" \t".contains(b));
    let (name, rest) = line.split_at(end.unwrap_or(line.len()));
    let word = |b: &[u8]| (!b.is_empty()).then(|| OsString::from_vec(b.trim_ascii().to_vec()));
    Some((word(name)?, word(rest)))
}

/// The program that `env` starts with this argument, if that is clear. It is not clear if there are options, which
/// may have values, or another `PATH`, which may find another program.
fn env_program(argument: &OsStr) -> Option<OsString> {
    let text = argument.to_str()?;
    let text = text.strip_prefix("-S").unwrap_or(text).trim_start();
    let mut words = text.split_whitespace();
    let word = words.find(|w| !w.contains('=') || w.starts_with("PATH="))?;
    (!word.starts_with(['-', '$', '"', '\'']) && !word.contains('=')).then(|| word.into())
}

/// `None`: no such file. `Some(false)`: it exists, but is not an executable file.
fn is_executable(path: &Path) -> Option<bool> {
    let meta = path.metadata().ok()?;
    Some(meta.is_file() && access(path, Access::EXEC_OK).is_ok())
}

fn not_executable(path: &Path) -> Refusal {
    let shown = path.display();
    Kind::NotExecutable.because(if path.is_dir() {
        format!("{shown} is a directory; name a program")
    } else {
        format!("{shown} is not executable; if it is a program, allow it with: chmod +x {shown}")
    })
}

fn is_loader(path: &Path) -> bool {
    let real = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    let name = real.file_name().unwrap_or_default().to_string_lossy();
    (name.starts_with("ld-linux") || name.starts_with("ld-2")) && name.contains(".so")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::elf::fixture::elf64;
    use goblin::elf::header::EM_386;
    use std::fs;
    use std::os::unix::fs::PermissionsExt;

    fn file(dir: &Path, name: &str, content: &[u8], mode: u32) -> PathBuf {
        let path = dir.join(name);
        fs::write(&path, content).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    }

    fn no_effect(result: Result<(), Refusal>) -> String {
        match result {
            Err(refusal) if refusal.kind == Kind::NoEffect => refusal.text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn dynamic_static_32_bit_foreign_and_damaged() {
        let dir = tempfile::tempdir().unwrap();
        let d = dir.path();
        assert_eq!(check(&file(d, "dyn", &elf64(true), 0o755)), Ok(()));
        assert!(no_effect(check(&file(d, "st", &elf64(false), 0o755))).contains("static"));
        let mut other = elf64(true);
        other[18] = 243;
        assert!(no_effect(check(&file(d, "rv", &other, 0o755))).contains("(RISCV)"));
        let mut narrow = elf64(true);
        narrow[4] = 1;
        narrow[18] = EM_386 as u8;
        assert!(no_effect(check(&file(d, "n", &narrow, 0o755))).contains("(32-bit)"));
        let cut = &elf64(true)[..70];
        let cut = check(&file(d, "cut", cut, 0o755)).unwrap_err();
        assert_eq!(cut.kind, Kind::NotExecutable);
    }

    #[test]
    fn a_musl_program_is_started() {
        let dir = tempfile::tempdir().unwrap();
        let mut musl = elf64(true);
        let name = b"/lib/ld-musl-x86_64.so.1\0";
        musl.truncate(120);
        musl.extend(name);
        musl[64 + 32] = name.len() as u8;
        check(&file(dir.path(), "m", &musl, 0o755)).unwrap();
    }

    #[test]
    fn this_machine_passes() {
        check_machine(&Conf::default()).unwrap();
    }

    #[test]
    fn system_programs_pass() {
        check(Path::new("/bin/sh")).unwrap();
        check(&resolve(OsStr::new("ls")).unwrap()).unwrap();
    }

    #[test]
    fn names() {
        let dir = tempfile::tempdir().unwrap();
        let status = |name: &OsStr| {
            let error = anyhow::Error::from(resolve(name).unwrap_err());
            error.downcast_ref::<Failure>().unwrap().status
        };
        for name in ["no-such-program-x", "/no/such", ""] {
            assert_eq!(status(OsStr::new(name)), 127, "{name}");
        }
        assert_eq!(status(OsStr::new("/etc")), 126);
        let plain = file(dir.path(), "plain", b"x", 0o644);
        assert_eq!(status(plain.as_os_str()), 126);
    }

    #[test]
    fn a_name_that_is_none_gets_its_remedy() {
        for (name, wanted) in [
            ("--summary", "before '--'"),
            ("retain_ms=5", "--conf retain_ms=5"),
            ("dev=zones:2", "--conf dev=zones:2"),
            ("LD_PRELOAD=x", "env LD_PRELOAD=x PROGRAM"),
            ("ls -l /", "sh -c 'ls -l /'"),
            ("no-such-program-x", "Give its path"),
        ] {
            let text = resolve(OsStr::new(name)).unwrap_err().text;
            assert!(text.contains(wanted), "{text}");
        }
    }

    #[test]
    fn scripts_are_judged_by_their_interpreter() {
        let dir = tempfile::tempdir().unwrap();
        let d = dir.path();
        let fixed = file(d, "static", &elf64(false), 0o755);
        check(&file(d, "a", b"#! /bin/sh -e\ntrue\n", 0o755)).unwrap();
        check(&file(d, "b", b"#!/usr/bin/env sh\n", 0o755)).unwrap();
        let by = format!("#!{}\n", fixed.display());
        assert!(no_effect(check(&file(d, "c", by.as_bytes(), 0o755))).contains("static"));
        for bad in [
            "#!/no/such\n",
            "#!\n",
            "#!/usr/bin/env no-such-program-x\n",
            "echo\n",
        ] {
            let r = check(&file(d, "d", bad.as_bytes(), 0o755));
            assert_eq!(r.unwrap_err().kind, Kind::NotExecutable, "{bad}");
        }
        let own = file(d, "self", b"", 0o755);
        fs::write(&own, format!("#!{}\n", own.display())).unwrap();
        assert!(check(&own).is_err());
    }

    #[test]
    fn shebang_words() {
        let s = |t: &str| shebang(t.as_bytes());
        assert_eq!(s("#!/bin/sh\n"), Some(("/bin/sh".into(), None)));
        assert_eq!(
            s("#! \t/a  -x y \nz"),
            Some(("/a".into(), Some("-x y".into())))
        );
        assert_eq!(
            env_program(OsStr::new("-S A=1 python3 -u")),
            Some("python3".into())
        );
        for unclear in ["-S -u A python3", "-S PATH=/a b", "-S \"my program\"", "-i"] {
            assert_eq!(env_program(OsStr::new(unclear)), None, "{unclear}");
        }
    }

    #[test]
    fn set_user_id() {
        let uid = rustix::process::getuid();
        let dir = tempfile::tempdir().unwrap();
        let path = file(dir.path(), "s", &elf64(true), 0o755);
        if uid.is_root() && std::os::unix::fs::chown(&path, Some(65534), None).is_ok() {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o4755)).unwrap();
            let nosuid = elf::gains_privilege(&path, &File::open(&path).unwrap()).is_none();
            if !nosuid {
                assert!(no_effect(check(&path)).contains("(set-user-ID)"));
            }
        }
    }
}
