//! Manual pages: what clap knows of a command, then its exit status, its environment and examples, which clap does not know.

use std::fs;
use std::io;
use std::path::Path;

use anyhow::{Context, Result};
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};

/// Texts with a word before each.
pub type Rows = &'static [(&'static str, &'static str)];

/// What a manual page says beside the options.
#[derive(Clone, Debug)]
pub struct Page {
    /// Exit status, and when it comes.
    pub status: Rows,
    /// Variables, and what they do.
    pub environment: Rows,
    /// Commands to type, and what they do.
    pub examples: Vec<(String, String)>,
}

/// The page of a command by its full name, such as `ebbtide-run`.
pub type Pages = fn(&str) -> Page;

/// The full name of a built command.
fn full_name(command: &Command) -> &str {
    command.get_display_name().unwrap_or(command.get_name())
}

/// The page as roff.
pub fn text(command: Command, pages: Pages) -> io::Result<Vec<u8>> {
    let page = pages(full_name(&command));
    let mut text = Vec::new();
    Man::new(command).render(&mut text)?;
    let mut roff = Roff::new();
    for (heading, rows) in [
        ("EXIT STATUS", page.status),
        ("ENVIRONMENT", page.environment),
    ] {
        roff.control("SH", [heading]);
        for (word, meaning) in rows {
            roff.control("TP", []);
            roff.text([bold(*word)]).text([roman(*meaning)]);
        }
    }
    roff.control("SH", ["EXAMPLES"]);
    for (example, meaning) in &page.examples {
        roff.control("PP", []);
        roff.text([roman(meaning.as_str())]);
        roff.control("PP", []).control("EX", []);
        roff.text([roman(format!("    {example}"))]);
        roff.control("EE", []);
    }
    roff.to_writer(&mut text)?;
    Ok(text)
}

/// Writes the page of each command that is not hidden, and of its subcommands.
pub fn write_all(command: Command, pages: Pages, dir: &Path) -> Result<()> {
    fn write(command: &Command, pages: Pages, dir: &Path) -> io::Result<()> {
        for below in command.get_subcommands().filter(|c| !c.is_hide_set()) {
            write(below, pages, dir)?;
        }
        write_one(command.clone(), pages, dir)
    }
    let mut command = command.disable_help_subcommand(true);
    command.build();
    fs::create_dir_all(dir)
        .and_then(|()| write(&command, pages, dir))
        .with_context(|| told_of(dir))
}

/// Writes the page of this command only.
pub fn write_page(mut command: Command, pages: Pages, dir: &Path) -> Result<()> {
    command.build();
    write_one(command, pages, dir).with_context(|| told_of(dir))
}

fn write_one(command: Command, pages: Pages, dir: &Path) -> io::Result<()> {
    let file = dir.join(format!("{}.1", full_name(&command)));
    fs::write(file, text(command, pages)?)
}

fn told_of(dir: &Path) -> String {
    format!(
        "cannot write manual pages to {}; give a directory in which you may write",
        dir.display()
    )
}
