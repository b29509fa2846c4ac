//! `forebay status`.

use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::message::{Reply, Request};

use super::{Reach, print, unexpected};
use crate::status::Screen;

#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments, reach: &Reach) -> Result<()> {
    let connection = reach.connect_if_running().map_err(|error| match error.place("socket") {
        Some(_) => error.advise("a training job starts a daemon, or `forebay daemon` does"),
        None => error,
    })?;
    let Reply::Status(json) = connection.ask(&Request::Status)? else { return Err(unexpected()) };
    if arguments.json {
        return print(&json);
    }
    let status = serde_json::from_str(&json).map_err(|error| {
        Error::new(ErrorKind::Invalid, format!("the daemon's status cannot be read: {error}"))
    })?;
    print(Screen(&status).to_string().trim_end())
}
