//! Which daemon a trainer talks to.

use std::path::PathBuf;
use std::time::Instant;

use forebay_error::{Error, ErrorKind, Result};

use crate::connection::Connection;
use crate::launch::Launch;

/// Where a node daemon listens unless its configuration says otherwise.
pub const NODE_SOCKET: &str = "/run/forebay/forebayd.sock";

/// Which daemon a trainer talks to.
#[derive(Debug, Clone)]
pub enum Address {
    /// The node daemon if it answers, else this user's own, started if need be.
    Auto(Launch),
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
            None | Some("") => Ok(Self::Auto(launch)),
            Some("embedded") => Ok(Self::Embedded(launch)),
            Some(text) => match text.strip_prefix("unix:").filter(|path| !path.is_empty()) {
                Some(path) => Ok(Self::Unix(path.into())),
                None => Err(Error::new(ErrorKind::Invalid, "this is no daemon address")
                    .at("daemon", text)
                    .advise("use 'embedded' or 'unix:/path/to/forebayd.sock', or leave it unset")),
            },
        }
    }

    /// Connects, starting a daemon where that is this address's way.
    ///
    /// # Errors
    /// `Unavailable` if no daemon answers by `deadline`, else what the daemon refused.
    pub fn connect(&self, deadline: Instant) -> Result<Connection> {
        match self {
            Self::Unix(path) => Connection::open(path).map_err(|error| {
                error.advise("start the daemon there, or unset FOREBAY_DAEMON to use a private one")
            }),
            Self::Embedded(launch) => launch.connect(deadline),
            Self::Auto(launch) => match Connection::open(NODE_SOCKET.as_ref()) {
                Ok(connection) => Ok(connection),
                Err(error) if error.kind() == ErrorKind::PermissionDenied => {
                    tracing::debug!(%error, "the node daemon does not serve this user");
                    launch.connect(deadline)
                }
                Err(error) if is_absent(&error) => launch.connect(deadline),
                Err(error) => Err(error),
            },
        }
    }
}

/// Whether nobody listens there (any more).
pub(crate) fn is_absent(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::NotFound | ErrorKind::Unavailable | ErrorKind::Closed)
}
