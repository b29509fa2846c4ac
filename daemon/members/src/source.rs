//! Sources of a member list.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use forebay_cluster::Member;
use forebay_config::settings::MembersSource;
use forebay_error::{Result, printable};

use super::Greet;
use super::dns::Dns;
use super::file::File;
use super::redis::Redis;

/// Answer of a source.
#[derive(Debug, Default)]
pub(super) struct Answer {
    /// Members, in any order.
    pub(super) members: Vec<Member>,
    /// Entries that name no member.
    pub(super) left_out: usize,
    /// Reason why the first of them names none.
    pub(super) why: Option<String>,
}

impl Answer {
    /// Counts an entry that names no member.
    pub(super) fn leave_out(&mut self, why: &impl ToString) {
        self.left_out += 1;
        // It holds words of others.
        self.why.get_or_insert_with(|| printable(&why.to_string()));
    }
}

/// A source. Each request is bounded in time and size.
#[async_trait]
pub(super) trait Source: Send {
    /// Reads the list; `known` are the members in force.
    async fn read(&mut self, known: &[Member]) -> Result<Answer>;

    /// Takes this node off the list, where it is on it by its own doing.
    async fn leave(&mut self) -> Result<()> {
        Ok(())
    }

    /// Puts this node back on the list, after [`Source::leave`].
    async fn join(&mut self) -> Result<()> {
        Ok(())
    }

    /// Interval between two readings.
    fn interval(&self) -> Duration;

    /// Name of the source, without secrets.
    fn shown(&self) -> String;
}

/// Returns a source, of which nothing is read yet.
pub(super) fn open(
    source: MembersSource,
    own: &Member,
    group: &str,
    greet: Arc<dyn Greet>,
) -> Result<Box<dyn Source>> {
    Ok(match source {
        MembersSource::File(path) => Box::new(File::new(path)),
        MembersSource::Dns { name, port } => {
            Box::new(Dns::new(name, port, own.clone(), group.to_owned(), greet))
        }
        MembersSource::Redis(url) => Box::new(Redis::new(&url, own.clone(), group)?),
    })
}
