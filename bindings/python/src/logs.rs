//! Warnings of the Rust half, for Python's logger `forebay`.
//!
//! A thread that warns may hold a lock that a thread with the GIL waits for, so it never takes the
//! GIL. A warning waits in a bounded queue until a call from Python ends.

use std::fmt::{Debug, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock};

use forebay_error::redacted;
use forebay_wire::fork::Generation;
use pyo3::exceptions::PyException;
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

/// Warnings of one process that no call has brought to Python yet.
struct Warnings {
    sender: SyncSender<Warning>,
    waiting: Mutex<Receiver<Warning>>,
    /// Number of warnings for which the queue had no room.
    left_out: AtomicU64,
    made_in: Generation,
    /// Those of its forked child: threads that the child lacks may hold a parent's locks.
    child: OnceLock<Box<Warnings>>,
}

/// Method of the logger, and the message.
type Warning = (&'static str, String);

impl Warnings {
    fn new() -> Self {
        let (sender, waiting) = sync_channel(WAITING_MAX);
        let (waiting, left_out) = (Mutex::new(waiting), AtomicU64::new(0));
        Self { sender, waiting, left_out, made_in: Generation::now(), child: OnceLock::new() }
    }

    /// Returns those of this process; `None` until it collects some.
    fn now() -> Option<&'static Self> {
        let mut warnings = WARNINGS.get()?;
        while !warnings.made_in.is_now() {
            warnings = warnings.child.get_or_init(|| Box::new(Self::new()));
        }
        Some(warnings)
    }
}

/// Begins to collect warnings.
pub(crate) fn begin() {
    WARNINGS.get_or_init(|| {
        let only = Targets::new().with_target(OURS, LevelFilter::WARN);
        let collecting = tracing_subscriber::registry().with(Collector.with_filter(only));
        // A daemon that runs in this process, as `forebay daemon` does, has a log of its own.
        let _ = tracing::subscriber::set_global_default(collecting);
        Warnings::new()
    });
}

/// Logs the warnings that wait.
///
/// # Errors
/// Exceptions that end the loop or the program, raised meanwhile: Ctrl-C, or an exit.
pub(crate) fn tell(py: Python<'_>) -> PyResult<()> {
    let Some(warnings) = Warnings::now() else { return Ok(()) };
    // Another thread tells, or a handler called back.
    let Ok(waiting) = warnings.waiting.try_lock() else { return Ok(()) };
    for (method, text) in waiting.try_iter() {
        log(py, method, &text)?;
    }
    match warnings.left_out.swap(0, Ordering::Relaxed) {
        0 => Ok(()),
        more => log(py, "warning", &format!("{more} more warnings came at once")),
    }
}

/// Logs by a method of Python's logger. A handler that fails is no failure of the call.
fn log(py: Python<'_>, method: &str, text: &str) -> PyResult<()> {
    let logger = py.import("logging")?.call_method1("getLogger", (OURS,))?;
    match logger.call_method1(method, (text,)) {
        Err(error) if error.is_instance_of::<PyException>(py) => {
            error.write_unraisable(py, None);
            Ok(())
        }
        logged => logged.map(drop),
    }
}

/// Layer that puts warnings into the queue.
struct Collector;

impl<S: Subscriber> Layer<S> for Collector {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let Some(warnings) = Warnings::now() else { return };
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
