//! Address of the daemon that a trainer uses.

use std::path::{Path, PathBuf};

use forebay_error::{Error, ErrorKind, Result};

use crate::connection::{Connection, Found};
use crate::deadline::Deadline;
use crate::launch::Launch;

/// Default socket of a node daemon.
pub const NODE_SOCKET: &str = "/run/forebay/forebayd.sock";

/// Address of the daemon that a trainer uses.
#[derive(Debug, Clone)]
pub enum Address {
    /// The node daemon if it answers and serves this user, else this user's own, started if need
    /// be.
    Auto {
        /// Socket of the node daemon.
        node: PathBuf,
        /// The user's own daemon.
        own: Launch,
    },
    /// This user's own daemon, started if need be.
    Embedded(Launch),
    /// The daemon at this socket, which somebody else starts.
    Unix(PathBuf),
}

impl Address {
    /// Reads what a user wrote: nothing, `embedded` or `unix:PATH`.
    ///
    /// # Errors
    /// `Invalid` for anything else.
    pub fn parse(text: Option<&str>, launch: Launch) -> Result<Self> {
        match text {
            None | Some("") => Ok(Self::Auto { node: NODE_SOCKET.into(), own: launch }),
            Some(text) => Ok(match socket(text)? {
                Some(path) => Self::Unix(path),
                None => Self::Embedded(launch),
            }),
        }
    }

    /// Returns true if [`Address::parse`] accepts `text`.
    pub fn check(text: &str) -> Result<()> {
        if text.is_empty() { Ok(()) } else { socket(text).map(drop) }
    }

    /// Connects, starting a daemon where that is this address's way.
    ///
    /// # Errors
    /// `Unavailable` if no daemon answers by `deadline`, else what the daemon refused.
    pub fn connect(&self, deadline: &Deadline) -> Result<Connection> {
        let connection = self.found(deadline)?;
        for notice in &connection.notices {
            tracing::warn!("{notice}");
        }
        Ok(connection)
    }

    fn found(&self, deadline: &Deadline) -> Result<Connection> {
        match self {
            Self::Unix(path) => match Connection::find(path, deadline)? {
                Found::Daemon(connection) => Ok(connection),
                Found::Nobody(error) => Err(error.advise(
                    "start the daemon there, or leave out --daemon and unset FOREBAY_DAEMON to use an embedded one",
                )),
            },
            Self::Embedded(launch) => launch.connect(deadline),
            Self::Auto { node, own } => match Connection::find(node, deadline) {
                Ok(Found::Daemon(connection)) => Ok(connection),
                Ok(Found::Nobody(_)) => own.connect(deadline),
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    let mut connection = own.connect(deadline)?;
                    connection.notices.push(not_served(node, &error));
                    Ok(connection)
                }
                Err(error) => Err(error),
            },
        }
    }
}

/// Returns the notice that the user's own daemon is used, and not the node's.
fn not_served(node: &Path, error: &Error) -> String {
    let node = node.display();
    format!(
        "a daemon of this user alone is used, since the node's does not serve this user: {error}; \
         FOREBAY_DAEMON=unix:{node} makes that an error, FOREBAY_DAEMON=embedded asks for the \
         user's own"
    )
}

/// The socket that a text names; `None` for the user's own daemon.
fn socket(text: &str) -> Result<Option<PathBuf>> {
    if text == "embedded" {
        return Ok(None);
    }
    let path = text.strip_prefix("unix:").filter(|path| !path.is_empty());
    path.map(|path| Some(path.into())).ok_or_else(|| {
        Error::new(ErrorKind::Invalid, "invalid daemon address")
            .at("daemon", text)
            .advise("use 'embedded' or 'unix:/path/to/forebayd.sock', or leave it unset")
    })
}
