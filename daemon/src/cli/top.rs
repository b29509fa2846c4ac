//! `forebay top`.

mod keys;
mod screen;

use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

use console::Term;
use forebay_client::Deadline;
use forebay_error::{Doing, Error, ErrorKind, Result};
use serde_json::Value;

use super::{ANSWER_TIMEOUT, Done, Failure, Target, print};
use keys::Keys;
use screen::{Line, Screen};

/// Goes to a terminal's first line, and clears what is behind a line and behind the last.
const HOME: &str = "\x1b[H";
const CLEAR_LINE: &str = "\x1b[K";
const CLEAR_REST: &str = "\x1b[J";

/// Show what the status page shows, live: who waits and for what, what comes when, tiers, data sets and origins.
///
/// Anew every second; q ends it, and so does Ctrl-C. Whoever waits most comes first. With --json, the daemon's state as a line of JSON
/// each time.
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

pub(super) fn run(arguments: &Arguments) -> Done {
    if !arguments.json && !std::io::stdout().is_terminal() {
        return Err(Failure::Usage(
            Error::new(ErrorKind::Invalid, "a live screen needs a terminal")
                .advise("use `forebay status`, or `forebay top --json`"),
        ));
    }
    let admin = arguments.target.admin_if_running()?;
    let keys = if arguments.json { None } else { Keys::taken()? };
    let mut before = None;
    let mut looks = 0;
    loop {
        let status: Value = admin
            .get("/api/v1/status", &Deadline::after(ANSWER_TIMEOUT))
            .map_err(Failure::of_request)?;
        if arguments.json {
            print(&status.to_string())?;
        } else {
            show(&status, before.as_ref())?;
        }
        before = Some(status);
        looks += 1;
        if arguments.count.is_some_and(|count| looks >= count) {
            return Ok(());
        }
        let interval = Duration::from_secs(arguments.interval);
        match &keys {
            Some(keys) if keys.end_before(Instant::now() + interval)? => return Ok(()),
            Some(_) => {}
            // Nothing comes before the time is up.
            None => drop(Deadline::after(interval).retry(|| Ok(None::<()>))?),
        }
    }
}

fn show(status: &Value, before: Option<&Value>) -> Result<()> {
    let (height, width) = Term::stdout().size();
    let lines = Screen { status, before, width: usize::from(width) }.lines();
    let mut text = HOME.to_owned();
    for (at, line) in lines.iter().take(usize::from(height)).enumerate() {
        // Behind the last there is no other: a terminal would scroll.
        text.push_str(if at > 0 { "\n" } else { "" });
        text.push_str(&Line::styled(line));
        text.push_str(CLEAR_LINE);
    }
    text.push_str(CLEAR_REST);
    let mut out = std::io::stdout();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).doing("write to the terminal")
}
