//! `forebay config apply`.
//!
//! The daemon decides. What this machine's user sees of groups and certificates may be another
//! thing than what the daemon does.

use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_api::applied::Applied;
use forebay_api::requests::{ConfigurationFile, Wish};
use forebay_client::Deadline;
use forebay_error::{Doing, Error, ErrorKind, Result};

use crate::{Change, Done, Failure, Target};

/// A daemon looks groups up and asks its disks how large they are, each of which may take some
/// seconds.
const APPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// Apply a configuration to the running daemon, all of it or nothing.
///
/// Without FILE the daemon reads its own file again, as on SIGHUP. With FILE it runs that content
/// from now on, and its own file stays as it is: `forebay status` shows the difference, and after a
/// restart the daemon's own file counts again.
///
/// Running jobs continue, and changes take effect at once for data sets, checkpoints, tenants,
/// sources, prices, tiers' capacity, keep_free and watermarks, and of the daemon for groups,
/// admin_group, max_connections and max_sessions_per_user. Everything else needs a restart: a
/// configuration with such a change is rejected, and so is one with a mistake; then nothing
/// changes.
///
/// Shards beyond a lower quota or capacity are evicted gradually, never while a job reads them. Try
/// it with --dry-run, which shows the changes and the bytes evicted.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The configuration; `.yaml`, `.yml` and `.json` are read as such, all else as TOML. Unset:
    /// the daemon's own file.
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    change: Change,
}

pub(super) fn run(Arguments { file, change }: &Arguments) -> Done {
    let applied = ask(&change.target, file.as_deref(), change.dry_run)?;
    change.output.print(&applied, Applied::to_string)?;
    match applied.why_not() {
        None => Ok(()),
        Some(why) => {
            let error = Error::new(ErrorKind::Invalid, why);
            Err(error.at("config", applied.file.display()).into())
        }
    }
}

/// Has a running daemon apply a file, or its own.
pub(super) fn ask(target: &Target, file: Option<&Path>, dry: bool) -> Done<Applied> {
    let wish = Wish { file: file.map(read).transpose()? };
    let admin = target.admin_if_running()?;
    let path = format!("/api/v1/policy?dry_run={dry}");
    let answer = admin.post(&path, &wish, &Deadline::after(APPLY_TIMEOUT));
    answer.map_err(Failure::of_request)
}

fn read(path: &Path) -> Result<ConfigurationFile> {
    let at = |error: Error| error.at("config", path.display());
    let bytes = std::fs::read(path).doing("read the configuration").map_err(at)?;
    let text = String::from_utf8(bytes).map_err(|error| {
        at(Error::new(ErrorKind::Invalid, format!("the file is not text: {error}")))
    })?;
    // The daemon names it to others, who are elsewhere.
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    Ok(ConfigurationFile { name: path.display().to_string(), text })
}
