//! `forebay top`.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use bytesize::ByteSize;
use forebay_client::Deadline;
use forebay_error::{Doing, Error, ErrorKind, Result};
use serde_json::Value;

use super::{ANSWER_TIMEOUT, Done, Failure, Target, print};
use crate::status::Screen;

/// Clears a terminal, and goes to its first line.
const CLEAR: &str = "\x1b[2J\x1b[H";

/// What is counted on and on, and what a second's difference of it is called.
const RATES: [(&str, &str); 4] = [
    ("/cache/origin_bytes", "fetched"),
    ("/cache/tier_read_bytes", "read from tiers"),
    ("/cache/copied_bytes", "served while arriving"),
    ("/cache/written_bytes", "written"),
];

/// Show the daemon's state live, with rates.
///
/// What `forebay status` shows, anew every second; Ctrl-C ends it. With --json, a line of JSON each time.
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
        // Nothing comes before the time is up.
        Deadline::after(Duration::from_secs(arguments.interval)).retry(|| Ok(None::<()>))?;
    }
}

fn show(status: &Value, before: Option<&Value>) -> Result<()> {
    let rates = before.map(|before| rates(before, status)).unwrap_or_default();
    let mut out = std::io::stdout();
    write!(out, "{CLEAR}{}\n{rates}\n", Screen(status))
        .and_then(|()| out.flush())
        .doing("write to the terminal")
}

/// What came and went between two looks, a second.
fn rates(before: &Value, now: &Value) -> String {
    let number = |of: &Value, path: &str| of.pointer(path).and_then(Value::as_f64).unwrap_or(0.0);
    let seconds = number(now, "/uptime_seconds") - number(before, "/uptime_seconds");
    if seconds <= 0.0 {
        // Another daemon answers.
        return String::new();
    }
    let rate = |(path, what): &(&str, &str)| {
        let bytes = (number(now, path) - number(before, path)).max(0.0) / seconds;
        format!("{}/s {what}", ByteSize(bytes as u64).display().iec())
    };
    RATES.iter().map(rate).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn rates_are_of_the_time_between() {
        let at = |seconds: f64, bytes: u64| json!({ "uptime_seconds": seconds, "cache": { "origin_bytes": bytes } });
        let told = rates(&at(1.0, 1024), &at(3.0, 5 * 1024));
        assert!(told.starts_with("2.0 KiB/s fetched, 0 B/s"), "{told}");
        assert_eq!(rates(&at(9.0, 5000), &at(1.0, 0)), "");
    }
}
