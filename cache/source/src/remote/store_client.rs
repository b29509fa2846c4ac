//! Arguments to open a store.

use std::sync::Arc;

use forebay_error::Result;

use super::Wire;
use super::wire::{Direction, Shared};
use crate::Options;
use crate::credentials::Lending;
use crate::limits::RateLimits;
use crate::network::Network;

/// Arguments to open a store.
pub(crate) struct StoreClient<'a> {
    /// Prefix of its URLs, such as `s3://bucket`.
    pub(crate) root: &'a str,
    /// Options of the client, with the rule's on top.
    pub(crate) options: &'a Options,
    /// The profile whose credentials it is to be, by the rule.
    pub(crate) profile: Option<&'a str>,
    /// Lender of credentials.
    pub(crate) lending: &'a Lending,
    pub(crate) wire: &'a Arc<Wire>,
    pub(crate) network: &'a Network,
    pub(crate) limits: RateLimits,
    pub(crate) direction: Direction,
}

impl StoreClient<'_> {
    /// The HTTP client for this way.
    pub(super) fn connector(&self) -> Result<Shared> {
        self.wire.connector_by(self.network, self.direction)
    }
}
