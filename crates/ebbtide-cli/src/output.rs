//! Files that this program writes: a file appears as a whole, with another name until then. What is no ordinary file, such as a device, is written to.

use std::fs::{self, File, Permissions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use tempfile::NamedTempFile;

/// A file that is written once.
pub enum Output {
    /// Replaces the file behind links.
    New(NamedTempFile, PathBuf),
    /// A device or a pipe, which cannot be replaced.
    Other(File, PathBuf),
}

impl Output {
    /// Opens it. Until [`Output::write`], the file that is there stays as it is.
    pub fn open(path: &Path) -> Result<Self> {
        let path = path.canonicalize().unwrap_or_else(|_| path.into());
        let opened = match fs::metadata(&path) {
            Ok(about) if !about.is_file() => {
                let file = File::options().write(true).open(&path);
                file.map(|file| Self::Other(file, path.clone()))
            }
            _ => {
                let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty());
                let file = tempfile::Builder::new()
                    // The umask applies.
                    .permissions(Permissions::from_mode(0o666))
                    .tempfile_in(dir.unwrap_or(Path::new(".")));
                file.map(|file| Self::New(file, path.clone()))
            }
        };
        opened.map_err(|error| cannot(&path, error))
    }

    /// Lets all users read the file, whatever the umask is.
    pub fn let_all_read(&self) -> Result<()> {
        match self {
            Self::New(file, path) => fs::set_permissions(file, Permissions::from_mode(0o644))
                .map_err(|error| cannot(path, error)),
            Self::Other(..) => Ok(()),
        }
    }

    /// Writes it as a whole.
    pub fn write(self, bytes: &[u8]) -> Result<()> {
        let (written, path) = match self {
            Self::New(mut file, path) => {
                let written = file.write_all(bytes);
                let placed =
                    written.and_then(|()| file.persist(&path).map_err(|error| error.error));
                (placed.map(drop), path)
            }
            Self::Other(mut file, path) => (file.write_all(bytes), path),
        };
        written.map_err(|error| cannot(&path, error))
    }
}

fn cannot(path: &Path, error: io::Error) -> anyhow::Error {
    let remedy = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => {
            "make room there, or give a file elsewhere"
        }
        ErrorKind::IsADirectory => "give a file, not a directory",
        _ => "give a file in a directory in which you may write",
    };
    anyhow::Error::new(error).context(format!("cannot write {}; {remedy}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::{FileTypeExt, symlink};

    #[test]
    fn a_file_is_replaced_as_a_whole_also_behind_a_link() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "old").unwrap();
        symlink(&file, &link).unwrap();
        let output = Output::open(&link).unwrap();
        output.let_all_read().unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "old");
        output.write(b"new").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert!(link.is_symlink());
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o644);
    }

    #[test]
    fn a_pipe_stays_a_pipe() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        // Otherwise the writer would wait for a reader.
        let mut both = File::options().read(true).write(true).open(&pipe).unwrap();
        Output::open(&pipe).unwrap().write(b"text").unwrap();
        let mut read = [0; 4];
        both.read_exact(&mut read).unwrap();
        assert_eq!(&read, b"text");
        assert!(pipe.metadata().unwrap().file_type().is_fifo());
    }

    #[test]
    fn errors_name_the_remedy() {
        let told = |path: &str| {
            let written = Output::open(Path::new(path)).and_then(|output| output.write(b"x"));
            format!("{:#}", written.unwrap_err())
        };
        assert!(told("/dev/full").contains("make room there"));
        assert!(told("/").contains("not a directory"));
        assert!(told("/no/such/file").contains("in which you may write"));
    }
}
