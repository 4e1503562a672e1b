//! The terminal: reads keys and signals, and restores the terminal at the end, however the program ends.
//!
//! A key, a signal, or the end of the command closes the view. A panic restores the terminal before its message is
//! written. In raw mode, Ctrl-Z and Ctrl-C are keys. So this module sends the signals to the rest of the process
//! group, as the terminal would.

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
use crate::top::cover::Cover;
use crate::top::started::Started;
use crate::top::view::View;
use crate::top::watch::Watch;

/// Maximum time until a signal is noticed.
const TURN: Duration = Duration::from_millis(100);
const LEAVING: [libc::c_int; 4] = [libc::SIGTERM, libc::SIGINT, libc::SIGHUP, libc::SIGQUIT];

/// The reason why the view was closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Left {
    /// A key.
    Quit,
    /// This signal.
    Signal(libc::c_int),
    /// The end of the command.
    Ended,
}

/// The action that a key asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    Nothing,
    Picture,
    Quit,
    Interrupt,
    Stop,
}

/// Restores the terminal when dropped.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        let _ = execute!(stdout(), Show);
        ratatui::restore();
    }
}

/// Shows the view until it is closed. The caller's `Passing` must handle the signals.
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
            view.hear(watch);
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
    if view.on_cover_key(watch, key.code) {
        return Asked::Picture;
    }
    let selected = view.selected(watch);
    match (key.code, selected) {
        (KeyCode::Char('p'), Some(pid)) => view.cover = Cover::Parts(pid),
        (KeyCode::Char('e'), Some(pid)) => view.cover = Cover::Settings(pid, String::new()),
        (KeyCode::Char('r'), Some(pid)) => view.cover = Cover::Release(pid),
        _ => return on_view_key(key.code, watch, view),
    }
    Asked::Picture
}

fn on_view_key(code: KeyCode, watch: &Watch, view: &mut View) -> Asked {
    match code {
        KeyCode::Char('?' | 'h') => view.cover = Cover::Help,
        KeyCode::Esc | KeyCode::Char('q') => return Asked::Quit,
        KeyCode::Char('s') => view.next_order(),
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

/// Stops this process as a program without a view would stop, and continues later. With `all`, it stops the whole
/// group, as the terminal would. Returns the time of the last SIGTSTP that this stop answers: a later signal asks for
/// another stop.
fn stop(terminal: &mut DefaultTerminal, all: bool) -> io::Result<Option<u64>> {
    terminal.show_cursor()?;
    ratatui::restore();
    // With the default action the signal stops this process, except if no process could continue its group.
    let came = with_action(libc::SIGTSTP, libc::SIG_DFL, || {
        let came = came_ns(libc::SIGTSTP);
        if all {
            let _ = kill_current_process_group(Signal::TSTP);
        } else {
            // SAFETY: a plain call.
            unsafe { libc::raise(libc::SIGTSTP) };
        }
        came
    });
    enable_raw_mode()?;
    execute!(stdout(), EnterAlternateScreen)?;
    // A new terminal object, which assumes nothing about the screen.
    *terminal = Terminal::new(CrosstermBackend::new(stdout()))?;
    Ok(came)
}

/// Sends a signal to the rest of the group, as the terminal does for a key. This process ignores it.
fn to_the_others(signal: libc::c_int) {
    // SAFETY: a plain call.
    with_action(signal, libc::SIG_IGN, || unsafe { libc::kill(0, signal) });
}

/// Does the work while the signal is ignored or has its default action.
fn with_action<T>(signal: libc::c_int, action: usize, work: impl FnOnce() -> T) -> T {
    assert!([libc::SIG_IGN, libc::SIG_DFL].contains(&action));
    // SAFETY: plain data for which zero is valid, and pointers to live locals; the action is no function.
    unsafe {
        let mut new: libc::sigaction = mem::zeroed();
        let mut old: libc::sigaction = mem::zeroed();
        new.sa_sigaction = action;
        libc::sigaction(signal, &new, &mut old);
        let result = work();
        libc::sigaction(signal, &old, ptr::null_mut());
        result
    }
}

/// Ends this process by the default action of the signal.
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
        assert_eq!(view.order().0, "live");
        assert_eq!(press(&mut view, KeyCode::Down), Asked::Picture);
        assert_eq!(press(&mut view, KeyCode::Char('x')), Asked::Nothing);
        assert_eq!(press(&mut view, KeyCode::Char('?')), Asked::Picture);
        assert_eq!(view.cover, Cover::Help);
        assert_eq!(press(&mut view, KeyCode::Esc), Asked::Picture);
        assert_eq!(view.cover, Cover::None);
        for (key, cover) in [
            ('p', Cover::Parts(7)),
            ('e', Cover::Settings(7, String::new())),
            ('r', Cover::Release(7)),
        ] {
            assert_eq!(press(&mut view, KeyCode::Char(key)), Asked::Picture);
            assert_eq!(view.cover, cover);
            assert_eq!(press(&mut view, KeyCode::Esc), Asked::Picture);
            assert_eq!(view.cover, Cover::None);
        }
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
