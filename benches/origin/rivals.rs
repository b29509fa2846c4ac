//! The tools that people fetch files with, at their best: parallel and ranged, into files that are
//! synced.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::run::{Took, timed};

/// Connections of each: more bring none of them anything on loopback.
const STREAMS: u64 = 8;

/// Address and keys of the object, for a tool.
pub(crate) struct Object {
    /// A link that needs no more than itself.
    pub(crate) link: String,
    /// As rclone names it.
    pub(crate) rclone: String,
    /// Environment of rclone.
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) bytes: u64,
}

/// A tool, as a command that brings the object into a folder.
pub(crate) type Tool = (&'static str, fn(&Object, &Path) -> Command);

/// All of them.
pub(crate) const TOOLS: [Tool; 3] = [("curl", curl), ("aria2c", aria2c), ("rclone", rclone)];

/// Returns true if it is installed.
pub(crate) fn is_here(tool: &Tool) -> bool {
    let told = Command::new(tool.0).arg("--version").stdout(Stdio::null()).status();
    told.is_ok_and(|status| status.success())
}

fn curl(object: &Object, folder: &Path) -> Command {
    let mut command = Command::new("curl");
    command.args(["--parallel", "--parallel-immediate", "--parallel-max", &STREAMS.to_string()]);
    let share = object.bytes.div_ceil(STREAMS);
    for stream in 0..STREAMS {
        let (first, end) = (stream * share, (stream * share + share).min(object.bytes));
        if stream > 0 {
            command.arg("--next");
        }
        command.args(["--silent", "--show-error", "--fail", "--range"]);
        command.arg(format!("{first}-{}", end - 1)).arg("--output");
        command.arg(folder.join(format!("part-{stream}"))).arg(&object.link);
    }
    command
}

fn aria2c(object: &Object, folder: &Path) -> Command {
    let mut command = Command::new("aria2c");
    command.args(["--quiet", "--no-conf", "--file-allocation=none", "--min-split-size=8M"]);
    command.arg(format!("--max-connection-per-server={STREAMS}"));
    command.arg(format!("--split={STREAMS}")).arg("--out=whole").arg("--dir").arg(folder);
    command.arg(&object.link);
    command
}

fn rclone(object: &Object, folder: &Path) -> Command {
    let mut command = Command::new("rclone");
    command.args(["copyto", "--config=", "--multi-thread-cutoff=1M"]);
    // rclone cannot use a bundle that the environment names for other tools; nothing here is
    // encrypted.
    command.env_remove("AWS_CA_BUNDLE");
    command.arg(format!("--multi-thread-streams={STREAMS}"));
    command.arg(&object.rclone).arg(folder.join("whole")).envs(&object.environment);
    command
}

/// Runs a tool and syncs what it wrote.
pub(crate) fn fetch(tool: &Tool, object: &Object, directory: &Path) -> Took {
    let folder = tempfile::Builder::new().prefix("origin-bench-").tempdir_in(directory).unwrap();
    let took = timed(|| {
        let out = (tool.1)(object, folder.path()).output().unwrap();
        assert!(out.status.success(), "{}: {}", tool.0, String::from_utf8_lossy(&out.stderr));
        let files = std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path());
        let synced = Command::new("sync").args(files).arg(folder.path()).status().unwrap();
        assert!(synced.success());
    });
    let listed = std::fs::read_dir(folder.path()).unwrap();
    let bytes: u64 = listed.map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
    assert_eq!(bytes, object.bytes, "{} fetched something else", tool.0);
    took
}
