//! The daemon's own log, on standard error: lines for people, or objects for machines.
//!
//! The subject of a line has one name everywhere: `job`, `session`, `tenant`, `dataset`, `url`
//! (without its secret parts), `tier`, `endpoint`, `error`. In JSON those are members of the line's
//! object, beside `timestamp`, `level`, `target` and `message`.

use std::io::{Stderr, Write};

use forebay_config::settings::LogFormat;
use forebay_error::{Error, ErrorKind, Result, redacted};
use tracing_subscriber::EnvFilter;

/// Environment variable for the log levels.
const LEVELS: &str = "FOREBAY_LOG";

/// Writer of lines without secrets. Libraries log URLs, too.
struct Redacting<W>(W);

impl<W: Write> Write for Redacting<W> {
    /// Writes a whole line, as the subscriber hands it over.
    fn write(&mut self, line: &[u8]) -> std::io::Result<usize> {
        let text = String::from_utf8_lossy(line);
        self.0.write_all(redacted(&text).as_bytes())?;
        Ok(line.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.0.flush()
    }
}

/// Begins to log, as much as `FOREBAY_LOG` asks for.
///
/// # Errors
/// `Invalid` if that makes no sense.
pub fn begin(format: LogFormat, log: fn() -> Stderr) -> Result<()> {
    let filter = match std::env::var_os(LEVELS).filter(|levels| !levels.is_empty()) {
        Some(levels) => EnvFilter::try_new(levels.to_string_lossy()).map_err(|error| {
            let what = format!("invalid {LEVELS}: {error}");
            Error::new(ErrorKind::Invalid, what)
                .at("levels", levels.display())
                .advise("write debug, info, warn or error, or e.g. info,forebay_store=debug")
        })?,
        None => EnvFilter::new("info"),
    };
    let writer = move || Redacting(log());
    let lines =
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(false);
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
    Ok(())
}
