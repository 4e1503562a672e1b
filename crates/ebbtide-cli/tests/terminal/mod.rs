//! A terminal of a test's own, and waiting for what runs in it.

use std::fs;
use std::os::fd::FromRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The exit status, if it comes in time.
pub fn status_within(child: &mut Child, seconds: u64) -> Option<i32> {
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        if let Some(status) = child.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    None
}

/// Starts a command as the foreground job of a new terminal; gives the other end.
pub fn in_terminal(command: &mut Command) -> (fs::File, Child) {
    let (mut main, mut side) = (0, 0);
    let null = std::ptr::null_mut();
    let size = libc::winsize {
        ws_row: 40,
        ws_col: 120,
        ws_xpixel: 0,
        ws_ypixel: 0,
    };
    // SAFETY: pointers to live locals; the name and the settings may be null.
    let rc = unsafe { libc::openpty(&mut main, &mut side, null, null.cast(), &size) };
    assert_eq!(rc, 0);
    // SAFETY: both descriptors were just opened and belong to nobody else.
    let (main, side) = unsafe { (fs::File::from_raw_fd(main), fs::File::from_raw_fd(side)) };
    command.stdin(side.try_clone().unwrap());
    command.stdout(side.try_clone().unwrap());
    command.stderr(side);
    // SAFETY: setsid and ioctl are async-signal-safe.
    unsafe {
        command.pre_exec(|| {
            libc::setsid();
            libc::ioctl(0, libc::TIOCSCTTY, 0);
            Ok(())
        });
    }
    let child = command.spawn().unwrap();
    // The terminal's side stays open in the command; close it here.
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    (main, child)
}
