//! Results kept beside the page: a file for each family, which `report --from` reads.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::figures::{Report, place};

fn file(dir: &Path, family: &str) -> PathBuf {
    dir.join(format!("{family}.json"))
}

/// Makes the directory; whether the results of these families can be kept there.
pub fn check<'a>(dir: &Path, families: impl Iterator<Item = &'a str>) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| {
        format!(
            "cannot make {}; choose another place with --keep",
            dir.display()
        )
    })?;
    for family in families {
        place::check(&file(dir, family), "--keep")?;
    }
    Ok(())
}

/// Replaces what was kept of the family; not a run that came to its end by one that was broken off.
pub fn write(dir: &Path, report: &Report) -> Result<()> {
    let file = file(dir, &report.family);
    if report.broken_off.is_some() {
        let kept = fs::read(&file).unwrap_or_default();
        let kept: Option<Report> = serde_json::from_slice(&kept).ok();
        ensure!(
            kept.is_none_or(|kept| kept.broken_off.is_some()),
            "{} stays: it has results of a run that came to its end",
            file.display()
        );
    }
    place::write(&file, &report.json()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::figures::SCHEMA;

    fn report(rounds: u32) -> Report {
        let json = serde_json::json!({
            "schema": SCHEMA, "family": "micro", "rounds": rounds, "quick": true, "machine": [],
            "measurements": [], "curves": [], "notes": [], "failures": [],
        });
        serde_json::from_value(json).unwrap()
    }

    #[test]
    fn a_file_is_replaced_and_read_again() {
        let base = tempfile::tempdir().unwrap();
        let dir = base.path().join("made/here");
        check(&dir, ["micro", "free"].into_iter()).unwrap();
        assert_eq!(
            fs::read_dir(&dir).unwrap().count(),
            0,
            "a check leaves nothing"
        );
        fs::write(dir.join("free.json"), "older").unwrap();
        // Whoever has the older one open reads all of that.
        write(&dir, &report(7)).unwrap();
        let mut older = fs::File::open(dir.join("micro.json")).unwrap();
        write(&dir, &report(8)).unwrap();
        let of_older: Report = serde_json::from_reader(&mut older).unwrap();
        let kept = super::super::saved(&dir.join("micro.json")).unwrap();
        assert_eq!((of_older.rounds, kept.rounds), (7, 8));
        assert_eq!(fs::read_to_string(dir.join("free.json")).unwrap(), "older");
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 2);
    }

    #[test]
    fn a_run_that_came_to_its_end_stays() {
        let dir = tempfile::tempdir().unwrap();
        let rounds = || {
            super::super::saved(&dir.path().join("micro.json"))
                .unwrap()
                .rounds
        };
        let broken_off = |rounds| {
            let mut report = report(rounds);
            report.broken_off = Some("by SIGINT".into());
            report
        };
        write(dir.path(), &broken_off(1)).unwrap();
        write(dir.path(), &broken_off(2)).unwrap();
        assert_eq!(rounds(), 2);
        write(dir.path(), &report(3)).unwrap();
        let error = write(dir.path(), &broken_off(4)).unwrap_err();
        assert!(format!("{error}").contains("micro.json stays"), "{error}");
        assert_eq!(rounds(), 3);
        write(dir.path(), &report(5)).unwrap();
        assert_eq!(rounds(), 5);
    }

    #[test]
    fn what_cannot_be_written_is_told_with_its_remedy() {
        let base = tempfile::tempdir().unwrap();
        let file = base.path().join("file");
        fs::write(&file, "").unwrap();
        let told = |dir: &Path| format!("{:#}", check(dir, ["micro"].into_iter()).unwrap_err());
        let error = told(&file);
        assert!(
            error.contains("--keep") && error.contains("file"),
            "{error}"
        );
        // Another family's file, or nobody's, is in nobody's way.
        fs::create_dir(base.path().join("free.json")).unwrap();
        check(base.path(), ["micro"].into_iter()).unwrap();
        fs::create_dir(base.path().join("micro.json")).unwrap();
        let error = told(base.path());
        assert!(
            error.contains("--keep") && error.contains("micro.json"),
            "{error}"
        );
        let error = write(&base.path().join("gone"), &report(1)).unwrap_err();
        assert!(
            format!("{error:#}").contains("gone/micro.json"),
            "{error:#}"
        );
    }
}
