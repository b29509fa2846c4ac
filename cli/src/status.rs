//! `forebay status`.

use forebay_api::status::Status;

use super::{Done, Query};

/// Show the daemon's state on one screen.
///
/// It shows the configuration in force, tiers, origins, fetches, memory, and the jobs connected
/// now. No daemon is started for it.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    query: Query,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let admin = arguments.query.target.admin_if_running()?;
    arguments.query.show::<Status>(&admin, "/api/v1/status", |status| status.to_string())
}
