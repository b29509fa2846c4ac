//! Record of an unfinished shard.

use forebay_error::{Error, ErrorKind};
use forebay_shard::Partial;
use forebay_source::Binding;

use super::{Fill, Target};

/// Parts after which the arrived bytes are synced and recorded. A crash loses 64 MiB of written
/// bytes, about a second's worth, and the parts in flight. A smaller shard is never recorded.
pub(super) const RECORD_PARTS: usize = 16;

impl Fill {
    /// Makes the written parts durable, then records them.
    ///
    /// Entries of an earlier record for parts that this fill has not reached stay: a resuming fill
    /// compares them. If the data cannot be made durable, the target is abandoned: a later sync of
    /// the same file may not report it. If the record cannot be written, a crash costs a restart of
    /// the fill.
    pub(super) async fn record(&self) {
        let Target::Disk(disk) = &self.destination.target else { return };
        let here = disk.here.iter().copied().chain(std::iter::repeat(None));
        let blocks = self.parts.sums().into_iter().zip(here).map(|(now, then)| now.or(then));
        let partial = Partial {
            origin: self.request.origin.clone(),
            tenant: self.request.tenant.clone(),
            len: self.request.stat.len,
            blocks: blocks.collect(),
        };
        // Checked last: parts lost by a failed target are counted after its error is set.
        if self.destination.fault.get().is_some() {
            return;
        }
        let synced = async {
            let (place, file) = (disk.place().await?, disk.opened()?.clone());
            disk.on_disk(move |directory, name| {
                place.sync_data(&file)?;
                Ok(directory.save_partial(name, &partial))
            })
            .await
        };
        let recorded = match synced.await {
            Ok(recorded) => recorded,
            Err(error) => return self.abandon_target(error),
        };
        if let Err(error) = recorded {
            let shard = disk.name.as_str();
            tracing::warn!(shard, %error, "failed to record a fill; a crash restarts it");
        }
    }

    /// Returns true if the next fill can resume from the parts here, after this one failed with
    /// `error`. The record of a malformed archive is removed: its bytes may have been changed on
    /// the way.
    pub(crate) async fn keep_for_resume(&self, error: &Error) -> bool {
        let Target::Disk(disk) = &self.destination.target else { return false };
        let keep = self.destination.fault.get().is_none()
            && matches!(
                error.kind(),
                ErrorKind::Unavailable | ErrorKind::Closed | ErrorKind::PermissionDenied
            );
        let look = disk.on_disk(move |directory, name| match keep {
            true => Ok(directory.has_partial(name)),
            false => {
                if let Err(error) = directory.remove_partial(name) {
                    tracing::warn!(shard = name.as_str(), %error, "failed to remove a record");
                }
                Ok(false)
            }
        });
        // The runtime ends: the next start looks.
        look.await.unwrap_or(keep)
    }

    /// Recorded checksum of a part that an earlier fill left here.
    pub(super) fn recorded(&self, part: u64) -> Option<u32> {
        let Target::Disk(disk) = &self.destination.target else { return None };
        // One reply cannot be resumed.
        if self.request.stat.binding == Binding::Sequential {
            return None;
        }
        disk.here.get(usize::try_from(part).unwrap_or(usize::MAX)).copied().flatten()
    }

    pub(super) fn is_here(&self, part: u64) -> bool {
        self.recorded(part).is_some()
    }
}
