//! Prometheus' own checks, of files of this checkout.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use forebay_testkit::tool;

/// Runs promtool on `input` and returns its output.
///
/// # Panics
/// If promtool is missing or reports a fault.
pub fn promtool(arguments: &[&str], input: &str) -> String {
    let tool = tool("promtool/promtool").expect("setup brings promtool");
    let mut promtool = Command::new(tool);
    promtool.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = promtool.spawn().expect("promtool starts");
    let mut stdin = child.stdin.take().expect("it is piped");
    stdin.write_all(input.as_bytes()).expect("promtool reads");
    drop(stdin);
    let ended = child.wait_with_output().expect("a child can be waited for");
    let (out, err) =
        (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success() && err.trim().is_empty(), "{out}{err}");
    out.into_owned()
}

/// Path of a file or folder of the checkout.
///
/// # Panics
/// Never: this crate lies in a checkout.
#[must_use]
pub fn checkout(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the crate is in a checkout").join(name)
}
