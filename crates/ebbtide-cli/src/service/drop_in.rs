//! The drop-in file of a unit: its text, how it is written, and how it is removed.
//!
//! The first line marks the file as ours: a file without it is left alone. The second says whether its folder was made for it, so that its
//! removal leaves everything as it was.

use std::fs::{self, Permissions};
use std::io::{ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use ebbtide_tools::conf::{self, Conf};

const MARK: &str = "# Written by 'ebbtide service enable'.";
const OWN_FOLDER: &str = "# Its folder was made for it.";

/// The drop-in of a unit, there or not.
pub struct DropIn {
    root: PathBuf,
    path: PathBuf,
    name: String,
}

impl DropIn {
    /// That of the unit with this full name.
    pub fn of(root: &Path, name: &str) -> Self {
        let folder = root.join("etc/systemd/system").join(format!("{name}.d"));
        DropIn {
            root: root.into(),
            path: folder.join("ebbtide.conf"),
            name: name.into(),
        }
    }

    /// Its file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether it is there. A file of this name that this program has not written is an error.
    pub fn is_ours(&self) -> Result<bool> {
        Ok(self.text()?.is_some())
    }

    /// An error if a link of another system leads out of its root, to this system's files.
    fn stay_inside(&self) -> Result<()> {
        let root = fs::canonicalize(&self.root);
        let root = root.with_context(|| format!("cannot read {}", self.root.display()))?;
        let existing = self.path.ancestors().skip(1).find_map(|folder| {
            let real = fs::canonicalize(folder).ok()?;
            Some((folder, real))
        });
        match existing {
            Some((folder, real)) if !real.starts_with(&root) => bail!(
                "{} leads to {}, outside of {}; make the link relative",
                folder.display(),
                real.display(),
                self.root.display()
            ),
            _ => Ok(()),
        }
    }

    fn text(&self) -> Result<Option<String>> {
        self.stay_inside()?;
        let shown = self.path.display();
        match fs::read_to_string(&self.path) {
            Ok(text) if text.starts_with(MARK) => Ok(Some(text)),
            Ok(_) => bail!(
                "{shown} was not written by 'ebbtide service enable'; move it away, or edit it by hand"
            ),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).with_context(|| format!("cannot read {shown}")),
        }
    }

    /// Writes it, and returns whether it was not there before.
    pub fn write(&self, library: &Path, conf: &Conf) -> Result<bool> {
        let old = self.text()?;
        let folder = self.path.parent().context("a path without a folder")?;
        let is_own = match &old {
            Some(old) => old.lines().any(|line| line == OWN_FOLDER),
            None => !folder.exists(),
        };
        let text = text(&self.name, library, conf, is_own);
        let put = || {
            fs::create_dir_all(folder)?;
            let mut file = tempfile::Builder::new()
                .permissions(Permissions::from_mode(0o644))
                .tempfile_in(folder)?;
            file.write_all(text.as_bytes())?;
            file.as_file()
                .set_permissions(Permissions::from_mode(0o644))?;
            file.persist(&self.path)?;
            std::io::Result::Ok(())
        };
        put().with_context(|| format!("cannot write {}{}", self.path.display(), as_root()))?;
        Ok(old.is_none())
    }

    /// Removes it, and its folder if that was made for it and is empty. Returns whether it was there.
    pub fn remove(&self) -> Result<bool> {
        let Some(text) = self.text()? else {
            return Ok(false);
        };
        fs::remove_file(&self.path)
            .with_context(|| format!("cannot remove {}{}", self.path.display(), as_root()))?;
        if text.lines().any(|line| line == OWN_FOLDER)
            && let Some(folder) = self.path.parent()
        {
            // Others may have put files into it.
            let _ = fs::remove_dir(folder);
        }
        Ok(true)
    }
}

fn as_root() -> &'static str {
    match rustix::process::geteuid().is_root() {
        true => "",
        false => "; run this command as root (sudo)",
    }
}

fn text(name: &str, library: &Path, conf: &Conf, is_own_folder: bool) -> String {
    let own = if is_own_folder {
        format!("{OWN_FOLDER}\n")
    } else {
        String::new()
    };
    let preload = assignment("LD_PRELOAD", &library.to_string_lossy());
    let settings = conf.to_string();
    let settings = match settings.is_empty() {
        true => String::new(),
        false => assignment(conf::ENV, &settings),
    };
    format!("{MARK}\n{own}# Undo: ebbtide service disable {name}\n[Service]\n{preload}{settings}")
}

/// A line `Environment=` that gives the variable this value: systemd unquotes it, and replaces specifiers (`%`).
fn assignment(name: &str, value: &str) -> String {
    let quoted = value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
        .replace('%', "%%");
    format!("Environment=\"{name}={quoted}\"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_quoted_for_systemd() {
        assert_eq!(
            assignment("A", "limit=50%"),
            "Environment=\"A=limit=50%%\"\n"
        );
        assert_eq!(
            assignment("A", "a \"b\" \\c $d"),
            "Environment=\"A=a \\\"b\\\" \\\\c $d\"\n"
        );
    }

    #[test]
    fn a_removal_leaves_everything_as_it_was() {
        let root = tempfile::tempdir().unwrap();
        let system = root.path().join("etc/systemd/system");
        fs::create_dir_all(&system).unwrap();
        let (drop_in, conf) = (DropIn::of(root.path(), "a.service"), Conf::default());
        let library = Path::new("/usr/lib/libebbtide.so.0");
        assert!(!drop_in.remove().unwrap());
        assert!(drop_in.write(library, &conf).unwrap() && !drop_in.write(library, &conf).unwrap());
        assert!(drop_in.is_ours().unwrap() && drop_in.remove().unwrap());
        assert!(system.read_dir().unwrap().next().is_none());
        // A folder that was there stays, also if it is empty.
        let folder = system.join("a.service.d");
        fs::create_dir(&folder).unwrap();
        assert!(drop_in.write(library, &conf).unwrap() && drop_in.remove().unwrap());
        assert!(folder.is_dir());
    }

    #[test]
    fn links_do_not_lead_out_of_a_root() {
        let (root, host) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let systemd = root.path().join("etc/systemd");
        fs::create_dir_all(&systemd).unwrap();
        std::os::unix::fs::symlink(host.path(), systemd.join("system")).unwrap();
        let drop_in = DropIn::of(root.path(), "a.service");
        let library = Path::new("/usr/lib/libebbtide.so.0");
        let told = drop_in.write(library, &Conf::default()).unwrap_err();
        assert!(told.to_string().contains("outside of"), "{told}");
        assert!(host.path().read_dir().unwrap().next().is_none());
        assert!(drop_in.remove().is_err());
    }

    #[test]
    fn files_of_others_stay() {
        let root = tempfile::tempdir().unwrap();
        let drop_in = DropIn::of(root.path(), "a.service");
        fs::create_dir_all(drop_in.path().parent().unwrap()).unwrap();
        fs::write(drop_in.path(), "[Service]\n").unwrap();
        let library = Path::new("/usr/lib/libebbtide.so.0");
        assert!(drop_in.write(library, &Conf::default()).is_err() && drop_in.remove().is_err());
        assert_eq!(fs::read_to_string(drop_in.path()).unwrap(), "[Service]\n");
    }
}
