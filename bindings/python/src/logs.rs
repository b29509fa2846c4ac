//! Warnings of the Rust half, for Python's logger `forebay`.
//!
//! A thread that warns may hold a lock that a thread with the GIL waits for, so it never takes the
//! GIL. A warning waits in a bounded queue until a call from Python ends.

use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock};

use forebay_error::redacted;
use pyo3::prelude::*;
use tracing::field::{Field, Visit};
use tracing::level_filters::LevelFilter;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// Most warnings that wait: a GPU that fails gives one for each of a loader's batches in flight.
const WAITING_MAX: usize = 64;

/// First part of the names of this project's crates.
const OURS: &str = "forebay";

static WARNINGS: OnceLock<Warnings> = OnceLock::new();

/// Warnings that no call has brought to Python yet.
struct Warnings {
    sender: SyncSender<Warning>,
    waiting: Mutex<Receiver<Warning>>,
    /// Number of warnings for which the queue had no room.
    left_out: AtomicU64,
}

/// Method of the logger, and the message.
type Warning = (&'static str, String);

/// Guard that passes warnings to Python's logger when a call ends.
pub(crate) struct Telling<'py>(Python<'py>);

/// Begins a call: what the Rust half warns of is told when the result is dropped.
pub(crate) fn telling(py: Python<'_>) -> Telling<'_> {
    warnings();
    Telling(py)
}

/// Logs a warning at once.
pub(crate) fn warn(py: Python<'_>, text: &str) {
    log(py, "warning", text);
}

/// Returns the queue, which collects from the first call on.
fn warnings() -> &'static Warnings {
    WARNINGS.get_or_init(|| {
        let only = Targets::new().with_target(OURS, LevelFilter::WARN);
        let collecting = tracing_subscriber::registry().with(Collector.with_filter(only));
        // A daemon that runs in this process, as `forebay daemon` does, has a log of its own.
        let _ = tracing::subscriber::set_global_default(collecting);
        let (sender, waiting) = sync_channel(WAITING_MAX);
        Warnings { sender, waiting: Mutex::new(waiting), left_out: AtomicU64::new(0) }
    })
}

/// Logs by a method of Python's logger. A handler that raises fails no call.
fn log(py: Python<'_>, method: &str, text: &str) {
    let logger = py
        .import("logging")
        .and_then(|logging| logging.call_method1("getLogger", (OURS,)))
        .and_then(|logger| logger.call_method1(method, (text,)));
    if let Err(error) = logger {
        error.write_unraisable(py, None);
    }
}

impl Drop for Telling<'_> {
    fn drop(&mut self) {
        let warnings = warnings();
        // Another thread tells; or one did while this process was forked, and is not here.
        let Ok(waiting) = warnings.waiting.try_lock() else { return };
        for (method, text) in waiting.try_iter() {
            log(self.0, method, &text);
        }
        match warnings.left_out.swap(0, Ordering::Relaxed) {
            0 => {}
            more => warn(self.0, &format!("{more} more warnings came at once")),
        }
    }
}

/// Layer that puts warnings into the queue.
struct Collector;

impl<S: Subscriber> Layer<S> for Collector {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let Some(warnings) = WARNINGS.get() else { return };
        let mut text = Text::default();
        event.record(&mut text);
        let method = if *event.metadata().level() == Level::ERROR { "error" } else { "warning" };
        if warnings.sender.try_send((method, text.shown())).is_err() {
            warnings.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// An event as text: its message, and its other fields.
#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Text {
    fn add(&mut self, field: &Field, value: &dyn Debug) {
        let separator = if self.fields.is_empty() { "" } else { ", " };
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, "{separator}{name}: {value:?}"),
        };
    }

    /// Returns the text without secrets.
    fn shown(&self) -> String {
        let Self { message, fields } = self;
        let text = match fields.as_str() {
            "" => message.clone(),
            _ => format!("{message} ({fields})"),
        };
        redacted(&text).into_owned()
    }
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.add(field, value);
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field, &format_args!("{value}"));
    }
}
