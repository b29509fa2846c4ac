//! `forebay status`.

use forebay_api::status::Screen;
use forebay_client::Deadline;
use serde_json::Value;

use super::{ANSWER_TIMEOUT, Done, Failure, Target, print, print_json};

/// Show the daemon's state on one screen.
///
/// The cache and what it fetched, memory and I/O engine, and the jobs connected now. No daemon is
/// started for it.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let admin = arguments.target.admin_if_running().map_err(|failure| match failure {
        Failure::Unreachable(error) => Failure::Unreachable(
            error.advise("a training job starts a daemon, or `forebay daemon` does"),
        ),
        failure => failure,
    })?;
    let status: Value = admin
        .get("/api/v1/status", &Deadline::after(ANSWER_TIMEOUT))
        .map_err(Failure::of_request)?;
    if arguments.json {
        return Ok(print_json(&status)?);
    }
    Ok(print(Screen(&status).to_string().trim_end())?)
}
