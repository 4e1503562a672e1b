//! `ebbtide service`: lets a service of systemd run under Ebbtide, by a drop-in file.
//!
//! The drop-in is `/etc/systemd/system/NAME.service.d/ebbtide.conf`. It sets `LD_PRELOAD`, and `EBBTIDE_CONF` if settings were given.
//! The unit itself stays as it is, and no command of systemd is run that changes something.
//!
//! | module | what it does |
//! |---|---|
//! | `unit` | finds a unit's files under a root, and reads their settings |
//! | `drop_in` | the text of the drop-in; writes and removes it |
//! | `preload` | finds the library, and what would keep it from taking effect |
//! | `running` | the service's process, and whether it has loaded the library |

mod drop_in;
mod preload;
mod running;
mod unit;

use std::path::Path;

use anyhow::{Result, bail};
use ebbtide_tools::conf::Conf;
use ebbtide_tools::out;

use crate::cli::{ServiceArgs, ServiceCommand, ServiceEnableArgs};
use drop_in::DropIn;
use unit::Unit;

/// Runs the subcommand and returns the exit status.
pub fn main(args: &ServiceCommand) -> Result<u8> {
    match args {
        ServiceCommand::Enable(args) => enable(args),
        ServiceCommand::Disable(args) => disable(args),
        ServiceCommand::Status(args) => status(args),
    }
}

fn enable(args: &ServiceEnableArgs) -> Result<u8> {
    let root = &args.service.root;
    let unit = Unit::find(root, &args.service.name)?;
    let conf = Conf::parse(&args.conf.join(","))?;
    let library = preload::library(root, args.lib.lib.as_deref())?;
    let drop_in = DropIn::of(root, unit.name());
    match preload::obstacle(root, &unit, &library, &conf, drop_in.path()) {
        Some(why) if args.force => out::warning(&why),
        Some(why) => bail!("{why}; --force writes the drop-in all the same"),
        None => {}
    }
    let is_new = drop_in.write(&library, &conf)?;
    let verb = if is_new { "written" } else { "replaced" };
    out::stdout(format!("{verb}: {}\n", drop_in.path().display()).as_bytes());
    let name = unit.name();
    tell_restart(root, name);
    tell(&format!(
        "check: ebbtide service status {name}\nundo: ebbtide service disable {name}"
    ));
    Ok(0)
}

fn disable(args: &ServiceArgs) -> Result<u8> {
    // The unit may have been removed since.
    let name = unit::full_name(&args.name)?;
    let drop_in = DropIn::of(&args.root, &name);
    if !drop_in.remove()? {
        // A name that no unit has is more likely a mistake than a wish that is fulfilled.
        Unit::find(&args.root, &name)?;
        tell(&format!("{name} was not enabled: nothing to do"));
        return Ok(0);
    }
    tell(&format!("removed: {}", drop_in.path().display()));
    tell_restart(&args.root, &name);
    Ok(0)
}

/// The exit status is 0 if the service is enabled and its process, if it runs, has loaded the library; else 1.
fn status(args: &ServiceArgs) -> Result<u8> {
    let unit = Unit::find(&args.root, &args.name)?;
    let name = unit.name();
    let drop_in = DropIn::of(&args.root, name);
    let is_enabled = drop_in.is_ours()?;
    match is_enabled {
        true => tell(&format!("{name}: enabled by {}", drop_in.path().display())),
        false => tell(&format!(
            "{name}: not enabled; ebbtide service enable {name}"
        )),
    }
    let Some(pid) = running::main_process(&args.root, name) else {
        return Ok(u8::from(!is_enabled));
    };
    let is_loaded = running::has_library(pid)?;
    tell(&match (is_loaded, is_enabled) {
        (true, _) => format!("process {pid}: runs under Ebbtide"),
        (false, true) => format!(
            "process {pid}: runs without Ebbtide; systemctl daemon-reload && systemctl restart {name}"
        ),
        (false, false) => format!("process {pid}: runs without Ebbtide"),
    });
    Ok(u8::from(!(is_enabled && is_loaded)))
}

fn tell_restart(root: &Path, name: &str) {
    if unit::is_live(root) {
        tell(&format!(
            "to take effect: systemctl daemon-reload && systemctl restart {name}"
        ));
    }
}

fn tell(text: &str) {
    out::stdout(format!("{text}\n").as_bytes());
}
