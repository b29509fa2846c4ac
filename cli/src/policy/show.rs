//! `forebay policy show`.
//!
//! One rule: it shows what decides about shards, every default included, and no secret.

use std::io::Write;
use std::path::{Path, PathBuf};

use forebay_client::NODE_SOCKET;
use forebay_config as config;
use forebay_config::Config;
use forebay_config::embedded;

use super::apply;
use crate::config::print_document;
use crate::daemon::CONFIG;
use crate::{Done, Target};

/// Print a configuration's tiers, sources, data sets and tenants with every default.
///
/// Where a daemon runs that goes by something else than this file says, which is its own, a line on standard
/// error tells so. `forebay config show` prints the daemon's own settings, too.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The configuration file.
    #[arg(value_name = "FILE", default_value = CONFIG)]
    file: PathBuf,
    /// Print what the running daemon goes by, whatever any file says.
    #[arg(long, conflicts_with = "file")]
    running: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    target: Target,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    if arguments.running {
        let (_, applied) = apply::ask(&arguments.target, None, true)?;
        return print_document(&applied.running, arguments.json);
    }
    let config = Config::read(&arguments.file)?;
    let document = config::document(&config, NODE_SOCKET, embedded::memory() as u64);
    print_document(&config::policy(&document), arguments.json)?;
    if let Some(note) = drift(&arguments.target, &arguments.file) {
        // Nothing is left to tell it to if standard error is gone.
        let _ = writeln!(std::io::stderr(), "forebay: {note}");
    }
    Ok(())
}

/// How the running daemon differs from this file, if it is its own. Who cannot ask it is not told.
fn drift(target: &Target, file: &Path) -> Option<String> {
    let (_, applied) = apply::ask(target, None, true).ok()?;
    let is_own = std::path::absolute(file).is_ok_and(|file| file == applied.own_file);
    let changes = applied.changes.len();
    (is_own && changes > 0).then(|| {
        let changes = if changes == 1 { "1 change".to_owned() } else { format!("{changes} changes") };
        format!(
            "the running daemon goes by something else, {changes}: `forebay policy diff` shows them, \
             `forebay policy apply` puts them in force"
        )
    })
}
