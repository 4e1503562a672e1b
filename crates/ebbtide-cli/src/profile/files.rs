//! Profiles in files: dumps of the library, and pprof files.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result, bail};
use ebbtide_interface::profile::VERSION;

use super::model::Profile;
use super::raw::{Bad, Raw};
use super::report::{self, Report};
use super::{pprof, symbols};

/// Writes the profile in a file in another form.
pub fn profile(path: &Path, report: &mut Report) -> Result<()> {
    let (profile, notes) = read(path)?;
    report.write(profile, notes)
}

/// Reads a dump or a pprof file. Returns notes too.
pub fn read(path: &Path) -> Result<(Profile, Vec<String>)> {
    let shown = path.display();
    let bytes = fs::read(path).with_context(|| {
        format!("cannot read {shown}; give a process number, or a file with a profile")
    })?;
    if bytes.starts_with(&pprof::GZIP) {
        let profile = pprof::read(&bytes).with_context(|| shown.to_string())?;
        return Ok((profile, Vec::new()));
    }
    let raw = match Raw::parse_dump(&bytes) {
        Ok(raw) => raw,
        Err(Bad::Short) => bail!("{shown} is cut short: the disk may be full"),
        Err(Bad::Version(version)) => bail!(
            "{shown} has version {version}, and this program reads version {VERSION}: use the 'ebbtide' that belongs to the library"
        ),
        Err(Bad::NoProfile) => bail!(
            "{shown} is neither a dump (profile_dump=PATH in EBBTIDE_CONF) nor a pprof file (.pb.gz); a program to run stands behind '--'"
        ),
    };
    let mut notes = report::notes_of(&raw);
    let profile = symbols::name(&raw, None, &mut notes);
    Ok((profile, notes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_say_what_to_give() {
        let dir = tempfile::tempdir().unwrap();
        let said = |bytes: &[u8]| {
            let path = dir.path().join("x");
            fs::write(&path, bytes).unwrap();
            format!("{:#}", read(&path).unwrap_err())
        };
        assert!(said(b"text").contains("neither a dump (profile_dump=PATH"));
        assert!(said(b"EBBDUMP1\x01\0\0\0\0\0\0\0").contains("cut short"));
        assert!(said(b"EBBDUMP1\x07\0\0\0\0\0\0\0").contains("version 7"));
        assert!(said(&[0x1f, 0x8b, 8, 0]).contains("damaged"));
        let missing = read(&dir.path().join("none")).unwrap_err();
        assert!(format!("{missing:#}").contains("give a process number"));
    }
}
