//! Runs of one batch: samples by their places.

use forebay_error::Result;
use forebay_wire::message::{Located, Picked};

use super::Loader;
use crate::session::Rest;

impl Loader {
    /// Asks for these samples as a run of one batch; whatever an earlier run had ready is dropped.
    ///
    /// # Errors
    /// `Invalid` if the daemon's release gives no samples so.
    pub fn pick(&self, samples: Vec<Picked>) -> Result<()> {
        self.pick_located(samples, Vec::new())
    }

    /// As [`Loader::pick`]; of shards that are not in the cache, the members that `located` names
    /// are read alone.
    ///
    /// # Errors
    /// `Invalid` if the daemon's release gives no samples so.
    pub fn pick_located(&self, samples: Vec<Picked>, located: Vec<Located>) -> Result<()> {
        self.begin(0, Rest::Pick(samples.into(), located.into()))
    }
}
