//! The terminal: keys, signals, and as it was afterwards, however this ends.
//!
//! The view is left by a key, a signal, or the end of the command; a panic restores the terminal before its message is
//! written. Ctrl-Z and Ctrl-C are keys here: what the terminal would have done for the others of the group is done for it.

use std::io::{self, stdout};
use std::mem;
use std::panic;
use std::ptr;
use std::time::{Duration, Instant};

use ratatui::backend::CrosstermBackend;
use ratatui::crossterm::cursor::Show;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::crossterm::execute;
use ratatui::crossterm::terminal::{EnterAlternateScreen, enable_raw_mode};
use ratatui::{DefaultTerminal, Terminal};
use rustix::process::{Signal, kill_current_process_group};

use crate::run::signals::came_ns;
use crate::top::started::Started;
use crate::top::view::View;
use crate::top::watch::Watch;

/// Signals are seen after this at the latest.
const TURN: Duration = Duration::from_millis(100);
const LEAVING: [libc::c_int; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];

/// Why the view was left.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// By a key.
    Quit,
    /// By this signal.
    Signal(libc::c_int),
    /// The command has ended.
    Ended,
}

/// What a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Nothing,
    Picture,
    Quit,
    Interrupt,
    Stop,
}

/// The terminal as it was, when dropped.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        let _ = execute!(stdout(), Show);
        ratatui::restore();
    }
}

/// Shows the view until it is left. Signals have to be handled by the caller's `Passing`.
pub fn show(watch: &mut Watch, view: &mut View, command: Option<&Started>) -> io::Result<Left> {
    let told = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        let _ = execute!(stdout(), Show);
        told(info);
    }));
    let mut terminal = ratatui::try_init()?;
    let _restore = Restore;
    let mut stopped_ns = came_ns(libc::SIGTSTP);
    let mut due = Instant::now();
    let mut is_new = true;
    loop {
        let now = Instant::now();
        if now >= due {
            watch.look(now);
            (due, is_new) = (now + view.interval(), true);
        }
        if mem::take(&mut is_new) {
            terminal.draw(|frame| view.draw(frame, watch))?;
        }
        let asked = match event::poll(due.saturating_duration_since(now).min(TURN)) {
            Ok(true) => on_event(&event::read()?, watch, view),
            Ok(false) => Asked::Nothing,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => Asked::Nothing,
            Err(error) => return Err(error),
        };
        match asked {
            Asked::Nothing => {}
            Asked::Picture => is_new = true,
            Asked::Quit => return Ok(Left::Quit),
            Asked::Interrupt => {
                to_the_others(libc::SIGINT);
                return Ok(Left::Signal(libc::SIGINT));
            }
            Asked::Stop => (is_new, stopped_ns) = (true, stop(&mut terminal, true)?),
        }
        if came_ns(libc::SIGTSTP) != stopped_ns {
            (is_new, stopped_ns) = (true, stop(&mut terminal, false)?);
        }
        if let Some(signal) = LEAVING
            .into_iter()
            .find(|&signal| came_ns(signal).is_some())
        {
            return Ok(Left::Signal(signal));
        }
        if command.is_some_and(|command| command.has_ended().unwrap_or(true)) {
            watch.look(Instant::now());
            return Ok(Left::Ended);
        }
    }
}

fn on_event(event: &Event, watch: &Watch, view: &mut View) -> Asked {
    match event {
        Event::Key(key) if key.kind != KeyEventKind::Release => on_key(key, watch, view),
        Event::Resize(..) => Asked::Picture,
        _ => Asked::Nothing,
    }
}

fn on_key(key: &KeyEvent, watch: &Watch, view: &mut View) -> Asked {
    if key.modifiers.contains(KeyModifiers::CONTROL) {
        return match key.code {
            KeyCode::Char('c') => Asked::Interrupt,
            KeyCode::Char('z') => Asked::Stop,
            KeyCode::Char('l') => Asked::Picture,
            _ => Asked::Nothing,
        };
    }
    match key.code {
        KeyCode::Char('?' | 'h') => view.is_help = !view.is_help,
        KeyCode::Esc | KeyCode::Char('q') if view.is_help => view.is_help = false,
        KeyCode::Esc | KeyCode::Char('q') => return Asked::Quit,
        KeyCode::Char('s') => view.sort = view.sort.next(),
        KeyCode::Down | KeyCode::Char('j') => view.step(watch, 1),
        KeyCode::Up | KeyCode::Char('k') => view.step(watch, -1),
        KeyCode::PageDown => view.step(watch, 10),
        KeyCode::PageUp => view.step(watch, -10),
        KeyCode::Home => view.step(watch, isize::MIN),
        KeyCode::End => view.step(watch, isize::MAX),
        _ => return Asked::Nothing,
    }
    Asked::Picture
}

/// Stops as a program without a view would, `all` of the group if the terminal would have; goes on when continued.
/// Returns when the last signal came that this was for: a later one is for another stop.
fn stop(terminal: &mut DefaultTerminal, all: bool) -> io::Result<Option<u64>> {
    terminal.show_cursor()?;
    ratatui::restore();
    // SAFETY: plain data for which zero is valid, pointers to live locals; with the default action the signal stops this
    // process, but not one whose group nobody would continue.
    let came = unsafe {
        let mut default: libc::sigaction = mem::zeroed();
        let mut old: libc::sigaction = mem::zeroed();
        default.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(libc::SIGTSTP, &default, &mut old);
        let came = came_ns(libc::SIGTSTP);
        if all {
            let _ = kill_current_process_group(Signal::TSTP);
        } else {
            libc::raise(libc::SIGTSTP);
        }
        libc::sigaction(libc::SIGTSTP, &old, ptr::null_mut());
        came
    };
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen)?;
    // One that knows of nothing on the screen.
    *terminal = Terminal::new(CrosstermBackend::new(stdout()))?;
    Ok(came)
}

/// What the terminal does for a key: to all of the group, but this process knows already.
fn to_the_others(signal: libc::c_int) {
    // SAFETY: plain data for which zero is valid, pointers to live locals.
    unsafe {
        let mut ignored: libc::sigaction = mem::zeroed();
        let mut old: libc::sigaction = mem::zeroed();
        ignored.sa_sigaction = libc::SIG_IGN;
        libc::sigaction(signal, &ignored, &mut old);
        libc::kill(0, signal);
        libc::sigaction(signal, &old, ptr::null_mut());
    }
}

/// Ends as the signal would have ended this process.
pub fn die_by(signal: libc::c_int) {
    // SAFETY: plain calls.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::table::Sort;
    use crate::top::table::tests::watch;

    #[test]
    fn keys_do_what_the_help_says() {
        let watch = watch();
        let mut view = View::new(Duration::from_secs(1), true);
        let press = |view: &mut View, code| {
            let key = Event::Key(KeyEvent::new(code, KeyModifiers::NONE));
            on_event(&key, &watch, view)
        };
        assert_eq!(press(&mut view, KeyCode::Char('s')), Asked::Picture);
        assert_eq!(view.sort, Sort::Live);
        assert_eq!(press(&mut view, KeyCode::Down), Asked::Picture);
        assert_eq!(press(&mut view, KeyCode::Char('x')), Asked::Nothing);
        assert_eq!(press(&mut view, KeyCode::Char('?')), Asked::Picture);
        assert!(view.is_help);
        assert_eq!(press(&mut view, KeyCode::Esc), Asked::Picture);
        assert!(!view.is_help);
        assert_eq!(press(&mut view, KeyCode::Char('q')), Asked::Quit);
        let control = |code| Event::Key(KeyEvent::new(code, KeyModifiers::CONTROL));
        let stop = on_event(&control(KeyCode::Char('z')), &watch, &mut view);
        assert_eq!(stop, Asked::Stop);
        let interrupt = on_event(&control(KeyCode::Char('c')), &watch, &mut view);
        assert_eq!(interrupt, Asked::Interrupt);
        assert_eq!(
            on_event(&Event::Resize(1, 1), &watch, &mut view),
            Asked::Picture
        );
    }
}
