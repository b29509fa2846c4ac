//! Bytes of a tier that a fill holds, as the fill sees them.

use async_trait::async_trait;
use forebay_error::Result;

/// Bytes of a tier, reserved for one fill.
#[async_trait]
pub(crate) trait Allotment: Send + Sync {
    /// Bytes reserved now.
    fn bytes(&self) -> u64;

    /// Bytes of the largest shard that fits any tier and the limits of the shares it is charged to.
    fn largest(&self) -> u64;

    /// Bytes that the tier holds at most, and the shares that the shard is charged to.
    fn capacity(&self) -> u64;

    /// Returns true if the device of the tier does not answer.
    fn is_silent(&self) -> bool;

    /// Grows to `bytes` at least, evicting others as for a newcomer. `is_awaited`: true if somebody
    /// waits for the shard.
    ///
    /// # Errors
    /// `Full` if there is no room and none can be made now.
    async fn grow(&self, bytes: u64, is_awaited: &(dyn Fn() -> bool + Send + Sync)) -> Result<()>;

    /// Notes that the fill lets others go first: no fill that is short of room waits for it.
    fn pause(&self);

    /// Notes that the turn of the fill has come again.
    fn resume(&self);

    /// Returns the bytes beyond the final length of the shard.
    fn settle(&self, bytes: u64);

    /// Gives up the place on the tier: the next request of the shard begins anew.
    fn abandon(&self);
}
