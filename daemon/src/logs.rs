//! The daemon's own log, on standard error: lines for people, or objects for machines.
//!
//! Its rule: what a line is about has one name wherever it is: `job`, `session`, `tenant`, `dataset`, `url` (without what may be secret in
//! it), `tier`, `endpoint`, `error`. In JSON those are members of the line's object, beside `timestamp`, `level`, `target` and `message`.

use std::io::Stderr;

use serde::{Deserialize, Serialize};
use tracing_subscriber::EnvFilter;

/// How lines are written.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// For people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Begins to log, as much as `FOREBAY_LOG` asks for.
pub(crate) fn begin(format: LogFormat, log: fn() -> Stderr) {
    let filter = EnvFilter::try_from_env("FOREBAY_LOG").unwrap_or_else(|_| EnvFilter::new("info"));
    let lines = tracing_subscriber::fmt().with_env_filter(filter).with_writer(log).with_ansi(false);
    // A second subscriber in one process is a test's business.
    let _ = match format {
        LogFormat::Text => lines.try_init(),
        LogFormat::Json => lines
            .json()
            .flatten_event(true)
            .with_current_span(false)
            .with_span_list(false)
            .try_init(),
    };
}
