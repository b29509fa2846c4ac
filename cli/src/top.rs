//! `forebay top`.
//!
//! ```text
//!   Live       looks, keys and signals as they come               top.rs
//!     asker    asks the daemon, beside everything else            top/asker.rs
//!     keys     the terminal's keys                                top/keys.rs
//!     screen   a status document as lines                         top/screen.rs
//!     window   those of them that the terminal has room for       top/window.rs
//! ```
//! Its rule: while a daemon does not answer, what it said before stays, keys do what they do, and it is asked again.

mod asker;
mod keys;
mod screen;
mod window;

use std::io::{IsTerminal, Write};
use std::time::Duration;

use console::Term;
use forebay_client::Deadline;
use forebay_error::{Doing, Error, ErrorKind, Result};
use serde_json::Value;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{Instant, sleep_until};

use super::{Done, Failure, Target, print};
use asker::{Asker, Asking};
use keys::{Key, Keys};
use screen::{Line, Screen};
use window::Window;

/// Goes to a terminal's first line, and clears what is behind a line and behind the last.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_REST: &str = "\x1b[J";

/// Show what the status page shows, live: who waits and for what, what comes when, tiers, data sets and origins.
///
/// Anew every second. Whoever waits most comes first; ranks of one job are one line, that of the rank that waits most. Arrows, PgUp, PgDn,
/// Home and End show what the window has no room for; q ends it, and so does Ctrl-C. While the daemon does not answer, what it said before
/// stays, and it is asked again. With --json, the daemon's state as a line of JSON each time,
/// until it does not answer.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// Look so many times, and end.
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
        return lines_of_json(arguments);
    }
    if !std::io::stdout().is_terminal() {
        return Err(Failure::Usage(
            Error::new(ErrorKind::Invalid, "a live screen needs a terminal")
                .advise("use `forebay status`, or `forebay top --json`"),
        ));
    }
    // Before there is a screen: where no daemon runs, that is said as by every verb.
    let first = Asking::of(&arguments.target).ask()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.doing("start an async runtime")?.block_on(async {
        // In this order: no signal finds the terminal taken and nobody who gives it back.
        let signals = Signals::listened_for()?;
        let keys = Keys::taken()?;
        let asker = Asker::started(&arguments.target)?;
        Live { arguments, signals, keys, asker }.show(first).await
    })
}

fn lines_of_json(arguments: &Arguments) -> Done {
    let mut asking = Asking::of(&arguments.target);
    let mut looks = 0;
    loop {
        print(&asking.ask()?.to_string())?;
        looks += 1;
        if arguments.are_enough(looks) {
            return Ok(());
        }
        // Nothing comes before the time is up.
        let _ = Deadline::after(arguments.interval()).retry(|| Ok(None::<()>))?;
    }
}

/// Signals that a live screen heeds.
struct Signals {
    ends: [Signal; 3],
    resized: Signal,
}

impl Signals {
    fn listened_for() -> Result<Self> {
        let listen = |kind| signal(kind).doing("listen for signals");
        let ends = [
            listen(SignalKind::terminate())?,
            listen(SignalKind::hangup())?,
            listen(SignalKind::interrupt())?,
        ];
        Ok(Self { ends, resized: listen(SignalKind::window_change())? })
    }
}

/// A screen that lives.
struct Live<'a> {
    arguments: &'a Arguments,
    signals: Signals,
    keys: Option<Keys>,
    asker: Asker,
}

/// What it shows.
struct Shown {
    status: Value,
    before: Option<Value>,
    /// Why what it shows is old.
    silence: Option<Error>,
    window: Window,
}

impl Live<'_> {
    async fn show(mut self, first: Value) -> Done {
        let window = Window::default();
        let mut shown = Shown { status: first, before: None, silence: None, window };
        let mut looks = 1;
        // None while an answer is awaited.
        let mut due = Some(Instant::now() + self.arguments.interval());
        loop {
            shown.draw()?;
            if self.arguments.are_enough(looks) {
                return Ok(());
            }
            let [terminated, hung_up, interrupted] = &mut self.signals.ends;
            tokio::select! {
                _ = terminated.recv() => return Ok(()),
                _ = hung_up.recv() => return Ok(()),
                _ = interrupted.recv() => return Ok(()),
                _ = self.signals.resized.recv() => {}
                key = next_key(self.keys.as_mut()) => match key {
                    Key::End => return Ok(()),
                    Key::Move(way) => shown.window.goes(way),
                },
                () = sleep_until(due.unwrap_or_else(Instant::now)), if due.is_some() => {
                    self.asker.ask()?;
                    due = None;
                }
                answer = self.asker.answer() => {
                    shown.hears(answer)?;
                    looks += 1;
                    due = Some(Instant::now() + self.arguments.interval());
                }
            }
        }
    }
}

/// The next key; none comes where keys come from no terminal.
async fn next_key(keys: Option<&mut Keys>) -> Key {
    match keys {
        Some(keys) => keys.next().await,
        None => std::future::pending().await,
    }
}

impl Shown {
    /// A daemon that is away may come back. What it refuses, it will refuse again.
    fn hears(&mut self, answer: Done<Value>) -> Done {
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

    fn draw(&mut self) -> Result<()> {
        let (height, width) = Term::stdout().size();
        let (height, width) = (usize::from(height), usize::from(width));
        let screen = Screen { status: &self.status, before: self.before.as_ref(), width };
        let old = self.silence.as_ref().map(|error| screen.old(&error.to_string()));
        let lines: Vec<_> = old.into_iter().chain(screen.lines()).collect();
        let mut text = HOME.to_owned();
        for (at, line) in self.window.of(&lines, height, width).iter().enumerate() {
            // Behind the last there is no other: a terminal would scroll.
            text.push_str(if at > 0 { "\n" } else { "" });
            text.push_str(&Line::styled(line));
            text.push_str(CLEAR_LINE);
        }
        text.push_str(CLEAR_REST);
        let mut out = std::io::stdout();
        out.write_all(text.as_bytes()).and_then(|()| out.flush()).doing("write to the terminal")
    }
}
