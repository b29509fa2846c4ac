//! `forebay top`.
//!
//! ```text
//!   Live       looks, keys and signals as they come        top.rs
//!     asker    asks the daemon, in a thread of its own     top/asker.rs
//!     screen   a status document as lines                  top/screen.rs
//! ```
//! While a daemon does not answer, its last state stays on the screen, keys work, and it is
//! asked again.

mod asker;
mod screen;

use std::io::IsTerminal;
use std::time::Duration;

use crossterm::event::{Event, EventStream, KeyCode, KeyEventKind, KeyModifiers};
use forebay_api::status::Status;
use forebay_client::Deadline;
use forebay_error::{Doing, Error, ErrorKind, Result};
use futures::StreamExt;
use ratatui::DefaultTerminal;
use ratatui::text::Line;
use ratatui::widgets::Paragraph;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep_until};

use self::asker::{Asker, Asking};
use self::screen::{Screen, fitting, quiet};
use super::{Done, Failure, Target, print};

/// Show the daemon's state live: waiting jobs and their causes, fetches, tiers, data sets, origins.
///
/// The screen is drawn anew every second. Jobs that wait most come first; the ranks of one job are
/// one line, that of the rank that waits most. Arrows, PgUp, PgDn, Home and End scroll; q and
/// Ctrl-C end it. While the daemon does not answer, its last state stays and it is asked again.
/// With --json, each state is printed as a line of JSON, until the daemon does not answer.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Seconds between two states (1 to 3600).
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// End after this number of states [default: no end].
    #[arg(long, value_name = "TIMES")]
    count: Option<u64>,
    /// Print JSON, a line each time.
    #[arg(long)]
    json: bool,
}

impl Arguments {
    fn interval(&self) -> Duration {
        Duration::from_secs(self.interval)
    }

    fn are_enough(&self, looks: u64) -> bool {
        self.count.is_some_and(|count| looks >= count)
    }
}

pub(super) fn run(arguments: &Arguments) -> Done {
    if arguments.json {
        return print_json_lines(arguments);
    }
    if !std::io::stdout().is_terminal() {
        return Err(Failure::Usage(
            Error::new(ErrorKind::Invalid, "a live screen needs a terminal")
                .advise("use `forebay status`, or `forebay top --json`"),
        ));
    }
    // Before there is a screen: a missing daemon is reported as by every other verb.
    let first = Asking::of(&arguments.target).ask()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.doing("start an async runtime")?.block_on(async {
        // In this order: no signal may find the terminal taken and nobody to give it back.
        let signals = end_signals()?;
        let terminal = Terminal::take()?;
        let asker = Asker::started(&arguments.target)?;
        Live { arguments, signals, events: EventStream::new(), terminal, asker }.show(first).await
    })
}

fn print_json_lines(arguments: &Arguments) -> Done {
    let mut asking = Asking::of(&arguments.target);
    let mut looks = 0;
    loop {
        print(&asking.ask_as_json()?.to_string())?;
        looks += 1;
        if arguments.are_enough(looks) {
            return Ok(());
        }
        // A wait: nothing is ready before the time is up.
        let _ = Deadline::after(arguments.interval()).retry(|| Ok(None::<()>))?;
    }
}

/// Listens for the signals that end a live screen. Ctrl-C is a key while the screen is shown.
fn end_signals() -> Result<[Signal; 3]> {
    let listen = |kind| signal(kind).doing("listen for signals");
    Ok([
        listen(SignalKind::terminate())?,
        listen(SignalKind::hangup())?,
        listen(SignalKind::interrupt())?,
    ])
}

/// A terminal in raw mode with a screen of its own. Dropping it restores the terminal.
struct Terminal(DefaultTerminal);

impl Terminal {
    fn take() -> Result<Self> {
        ratatui::try_init().map(Self).doing("take the terminal")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing back.
        let _ = self.0.show_cursor();
        let _ = ratatui::try_restore();
    }
}

/// A live screen.
struct Live<'a> {
    arguments: &'a Arguments,
    signals: [Signal; 3],
    events: EventStream,
    terminal: Terminal,
    asker: Asker,
}

/// Contents of a live screen.
struct Shown {
    status: Status,
    before: Option<Status>,
    /// The error, while the daemon does not answer.
    silence: Option<Error>,
    scroll: Scroll,
}

impl Live<'_> {
    async fn show(mut self, first: Status) -> Done {
        let mut shown =
            Shown { status: first, before: None, silence: None, scroll: Scroll::default() };
        let mut looks = 1;
        // None while an answer is awaited.
        let mut due = Some(Instant::now() + self.arguments.interval());
        loop {
            shown.draw(&mut self.terminal.0)?;
            if self.arguments.are_enough(looks) {
                return Ok(());
            }
            let [terminated, hung_up, interrupted] = &mut self.signals;
            tokio::select! {
                _ = terminated.recv() => return Ok(()),
                _ = hung_up.recv() => return Ok(()),
                _ = interrupted.recv() => return Ok(()),
                event = self.events.next() => match event {
                    Some(Ok(event)) if !shown.scroll.handle(&event) => return Ok(()),
                    Some(Ok(_)) => {}
                    // The terminal is gone.
                    Some(Err(_)) | None => return Ok(()),
                },
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.asker.ask()?;
                    due = None;
                }
                answer = self.asker.answer() => {
                    shown.note(answer)?;
                    looks += 1;
                    due = Some(Instant::now() + self.arguments.interval());
                }
            }
        }
    }
}

impl Shown {
    /// Notes an answer. A daemon that is away may come back; a rejected request stays rejected.
    fn note(&mut self, answer: Done<Status>) -> Done {
        match answer {
            Ok(status) => {
                self.before = Some(std::mem::replace(&mut self.status, status));
                self.silence = None;
            }
            Err(Failure::Unreachable(error)) => self.silence = Some(error),
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    fn draw(&mut self, terminal: &mut DefaultTerminal) -> Result<()> {
        let drawn = terminal.draw(|frame| {
            let (width, height) = (frame.area().width, frame.area().height);
            let (status, before, width) = (&self.status, self.before.as_ref(), width.into());
            let screen = Screen { status, before, width };
            let old = self.silence.as_ref().map(|error| screen.old(&error.to_string()));
            let lines: Vec<_> = old.into_iter().chain(screen.lines()).collect();
            let seen = self.scroll.seen(&lines, height.into(), width);
            frame.render_widget(Paragraph::new(seen), frame.area());
        });
        drawn.doing("write to the terminal").map(drop)
    }
}

/// The part of the lines that is seen.
#[derive(Debug, Default)]
struct Scroll {
    first: usize,
    /// Lines that fit, and lines there are.
    room: usize,
    lines: usize,
}

impl Scroll {
    /// Follows a key; false if it ends the screen.
    fn handle(&mut self, event: &Event) -> bool {
        let Event::Key(key) = event else { return true };
        if key.kind == KeyEventKind::Release {
            return true;
        }
        let is_control = key.modifiers.contains(KeyModifiers::CONTROL);
        self.first = match key.code {
            KeyCode::Char('c') if is_control => return false,
            KeyCode::Char('q' | 'Q')
                if key.modifiers.difference(KeyModifiers::SHIFT).is_empty() =>
            {
                return false;
            }
            KeyCode::Up => self.first.saturating_sub(1),
            KeyCode::Down => self.first + 1,
            KeyCode::PageUp => self.first.saturating_sub(self.room),
            KeyCode::PageDown => self.first + self.room,
            KeyCode::Home => 0,
            KeyCode::End => self.lines,
            _ => self.first,
        };
        self.stay_within();
        true
    }

    fn stay_within(&mut self) {
        self.first = self.first.min(self.lines.saturating_sub(self.room));
    }

    /// Returns the lines that fit a terminal of this size. If some do not fit, the last line says
    /// how to see them.
    fn seen(&mut self, lines: &[Line<'static>], height: usize, width: usize) -> Vec<Line<'static>> {
        self.lines = lines.len();
        self.room = if self.lines <= height { height } else { height.saturating_sub(1) };
        self.stay_within();
        let mut seen: Vec<_> = lines.iter().skip(self.first).take(self.room).cloned().collect();
        if self.lines > height {
            let (first, last) = (self.first + 1, self.first + seen.len());
            let hint = format!(
                "lines {first} to {last} of {}; arrows, PgUp, PgDn: more, q: end",
                self.lines
            );
            seen.push(quiet(&fitting(&hint, width)));
        }
        seen
    }
}

#[cfg(test)]
mod tests {
    use crossterm::event::KeyEvent;

    use super::*;

    fn press(code: KeyCode, modifiers: KeyModifiers) -> Event {
        Event::Key(KeyEvent::new(code, modifiers))
    }

    fn seen(scroll: &mut Scroll, lines: usize, height: usize) -> Vec<String> {
        let lines: Vec<_> = (1..=lines).map(|n| Line::raw(n.to_string())).collect();
        scroll.seen(&lines, height, 80).into_iter().map(|line| line.to_string()).collect()
    }

    #[test]
    fn keys_scroll_to_every_line() {
        let mut scroll = Scroll::default();
        let press = |scroll: &mut Scroll, code| scroll.handle(&press(code, KeyModifiers::NONE));
        assert_eq!(seen(&mut scroll, 3, 3), ["1", "2", "3"]);
        assert!(press(&mut scroll, KeyCode::Down));
        assert_eq!(seen(&mut scroll, 3, 3), ["1", "2", "3"], "there is no more");
        let hint = |first: usize, last: usize| {
            format!("lines {first} to {last} of 10; arrows, PgUp, PgDn: more, q: end")
        };
        assert_eq!(seen(&mut scroll, 10, 4), ["1", "2", "3", &hint(1, 3)]);
        for (key, first) in [
            (KeyCode::Up, 1),
            (KeyCode::Down, 2),
            (KeyCode::PageDown, 5),
            (KeyCode::PageDown, 8),
            (KeyCode::PageDown, 8),
            (KeyCode::Up, 7),
            (KeyCode::PageUp, 4),
            (KeyCode::Home, 1),
            (KeyCode::End, 8),
            (KeyCode::Down, 8),
        ] {
            assert!(press(&mut scroll, key));
            let last = first + 2;
            let lines: Vec<_> =
                (first..=last).map(|n| n.to_string()).chain([hint(first, last)]).collect();
            assert_eq!(seen(&mut scroll, 10, 4), lines, "{key:?}");
        }
        // With more room, or fewer lines, no line stays empty without need.
        assert_eq!(seen(&mut scroll, 10, 12).len(), 10);
        assert_eq!(seen(&mut scroll, 2, 12), ["1", "2"]);
    }

    #[test]
    fn only_q_and_ctrl_c_end_the_screen() {
        let mut scroll = Scroll::default();
        for (code, modifiers) in [
            (KeyCode::Char('q'), KeyModifiers::NONE),
            (KeyCode::Char('Q'), KeyModifiers::SHIFT),
            (KeyCode::Char('c'), KeyModifiers::CONTROL),
        ] {
            assert!(!scroll.handle(&press(code, modifiers)), "{code:?}");
        }
        for (code, modifiers) in [
            (KeyCode::Char('c'), KeyModifiers::NONE),
            (KeyCode::Char('q'), KeyModifiers::ALT),
            (KeyCode::Esc, KeyModifiers::NONE),
            (KeyCode::F(5), KeyModifiers::NONE),
        ] {
            assert!(scroll.handle(&press(code, modifiers)), "{code:?}");
        }
    }

    #[test]
    fn lines_fit_any_height() {
        let mut scroll = Scroll::default();
        for height in 0..3 {
            assert!(seen(&mut scroll, 10, height).len() <= height.max(1));
        }
    }
}
