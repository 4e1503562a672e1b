//! Keeps the result of each entry in `target/suites` or `target/big` until a run of all has reported it. So an interrupted run
//! continues where it was. A result counts only for the same library and the same script.

use std::fs;
use std::hash::{DefaultHasher, Hasher};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

use super::entry::Entry;
use crate::run::target_dir;

/// The kept results of a directory of entries.
pub(super) struct Kept {
    dir: PathBuf,
    library: Vec<u8>,
}

#[derive(Serialize, Deserialize)]
struct File<R> {
    inputs: u64,
    result: R,
}

impl Kept {
    pub fn open(directory: &str, library: &Path) -> Result<Kept, String> {
        let dir = target_dir().join(directory);
        let told = |e: std::io::Error| format!("{}: {e}", dir.display());
        fs::create_dir_all(&dir).map_err(told)?;
        let library = fs::read(library).map_err(told)?;
        Ok(Kept { dir, library })
    }

    /// The result of an entry, if its inputs are the same.
    pub fn load<R: DeserializeOwned>(&self, entry: &Entry) -> Option<R> {
        let bytes = fs::read(self.path(entry)).ok()?;
        let file: File<R> = serde_json::from_slice(&bytes).ok()?;
        (file.inputs == self.inputs(entry)).then_some(file.result)
    }

    pub fn store<R: Serialize>(&self, entry: &Entry, result: R) -> Result<(), String> {
        let inputs = self.inputs(entry);
        let text = serde_json::to_string(&File { inputs, result }).map_err(|e| e.to_string())?;
        let path = self.path(entry);
        fs::write(&path, text).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// Removes all: they are reported.
    pub fn clear(&self) {
        let _ = fs::remove_dir_all(&self.dir);
    }

    fn path(&self, entry: &Entry) -> PathBuf {
        self.dir.join(format!("{}.json", entry.name))
    }

    fn inputs(&self, entry: &Entry) -> u64 {
        let mut hasher = DefaultHasher::new();
        hasher.write(&self.library);
        hasher.write(&fs::read(&entry.script).unwrap_or_default());
        hasher.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_is_kept_for_its_inputs() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut kept = Kept {
            dir: dir.path().to_owned(),
            library: b"one".to_vec(),
        };
        let entry = &super::super::entry::all("suites", &["glibc"]).expect("it is there")[0];
        assert_eq!(kept.load::<u32>(entry), None);
        kept.store(entry, 7).expect("it is written");
        assert_eq!(kept.load(entry), Some(7));
        kept.library = b"another".to_vec();
        assert_eq!(kept.load::<u32>(entry), None);
    }
}
