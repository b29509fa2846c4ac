//! The end of a trace that a benchmark wrote.

use std::io::Write;

use forebay_client::{EVENTS_MAX, Trace};
use forebay_error::Result;

/// Says where a trace is, and what is not in it; on standard error, where reports are not.
pub(super) fn finish(trace: &Trace) -> Result<()> {
    let traced = trace.finish()?;
    let left_out = match traced.left_out {
        0 => String::new(),
        left_out => format!(", {left_out} left out (it holds {EVENTS_MAX} at most)"),
    };
    let (path, events) = (traced.path.display(), traced.events);
    // A closed standard error is ignored.
    let _ = writeln!(
        std::io::stderr(),
        "trace: {path}: {events} events{left_out}; open it at https://ui.perfetto.dev"
    );
    Ok(())
}
