//! Shares under the current rules.
//!
//! The rules change as a whole, while the tables of all tiers are locked. A holder of a table
//! lock gets the same answer every time.

use std::sync::{Arc, PoisonError, RwLock};

use super::Shares;

/// Shares under the current rules.
#[derive(Debug)]
pub(crate) struct CurrentShares(RwLock<Arc<Shares>>);

impl CurrentShares {
    pub(crate) fn new(shares: Shares) -> Arc<Self> {
        Arc::new(Self(RwLock::new(Arc::new(shares))))
    }

    pub(crate) fn current(&self) -> Arc<Shares> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Puts other rules in force.
    pub(crate) fn replace(&self, shares: Arc<Shares>) {
        shares.enforce(&self.current());
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = shares;
    }
}
