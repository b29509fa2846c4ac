//! `forebay config diff`.
//!
//! Both sides must be right; what differs only in how it is written is no difference.

use std::path::{Path, PathBuf};

use forebay_client::NODE_SOCKET;
use forebay_config as config;
use forebay_config::embedded;
use forebay_config::{Change, Config};
use forebay_error::{Error, ErrorKind};
use serde::Serialize;

use super::apply;
use crate::{Done, Query, Target, print, print_json};

/// Show the changes between two configurations, in words.
///
/// With one file, or none, the first is the running daemon's configuration; with none, the second
/// is the daemon's own file: the changes a restart, or `forebay config apply`, would make.
///
/// The comparison is of effective values, defaults included. Exit code 0 whether they differ or
/// not.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The configuration as it is. A file that is given alone is the new one; the running daemon's
    /// configuration is then the old one.
    #[arg(value_name = "OLD")]
    first: Option<PathBuf>,
    /// The configuration as it is to be; the two may be written in different languages.
    #[arg(value_name = "NEW")]
    second: Option<PathBuf>,
    #[command(flatten)]
    query: Query,
}

#[derive(Serialize)]
struct Document {
    changes: Vec<Change>,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let changes = match (&arguments.first, &arguments.second) {
        (Some(old), Some(new)) => {
            let (old, new) = (Config::read(old)?, Config::read(new)?);
            config::diff(&old, &new, NODE_SOCKET, embedded::memory() as u64)
        }
        (new, _) => of_daemon(&arguments.query.target, new.as_deref())?,
    };
    if arguments.query.output.json {
        return Ok(print_json(&Document { changes })?);
    }
    Ok(print(&words(&changes))?)
}

/// Returns the changes that a file, or its own, makes for a running daemon.
pub(super) fn of_daemon(target: &Target, new: Option<&Path>) -> Done<Vec<Change>> {
    let applied = apply::ask(target, new, true)?;
    if let Some(mistake) = applied.mistakes.first() {
        let error = Error::new(ErrorKind::Invalid, mistake.text.clone());
        let file = applied.file.display();
        return Err(error.advise(format!("see `forebay config check {file}`")).into());
    }
    Ok(applied.changes)
}

pub(super) fn words(changes: &[Change]) -> String {
    match changes {
        [] => "nothing changes".to_owned(),
        changes => changes.iter().map(Change::to_string).collect::<Vec<_>>().join("\n"),
    }
}
