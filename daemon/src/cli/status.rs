//! `forebay status`.

use forebay_client::Deadline;
use forebay_error::{Error, ErrorKind};
use forebay_wire::message::{Reply, Request};

use super::{ANSWER_TIMEOUT, Done, Failure, Target, print, unexpected};
use crate::status::Screen;

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
    let connection = arguments.target.connect_if_running().map_err(|failure| match failure {
        Failure::Unreachable(error) => Failure::Unreachable(
            error.advise("a training job starts a daemon, or `forebay daemon` does"),
        ),
        failure => failure,
    })?;
    let answer = connection.ask(&Request::Status, &Deadline::after(ANSWER_TIMEOUT));
    let Reply::Status(json) = answer.map_err(Failure::Unreachable)? else {
        return Err(unexpected().into());
    };
    if arguments.json {
        return Ok(print(&json)?);
    }
    let status = serde_json::from_str(&json).map_err(|error| {
        Error::new(ErrorKind::Invalid, format!("the daemon's status cannot be read: {error}"))
    })?;
    Ok(print(Screen(&status).to_string().trim_end())?)
}
