//! The rules that count now.
//!
//! One rule: they change as a whole, while every tier's table is held. Whoever holds a table may ask as
//! often as it likes and hears the same.

use std::sync::{Arc, PoisonError, RwLock};

use super::Shares;

/// The shares by the rules that count now.
#[derive(Debug)]
pub(crate) struct InForce(RwLock<Arc<Shares>>);

impl InForce {
    pub(crate) fn new(shares: Shares) -> Arc<Self> {
        Arc::new(Self(RwLock::new(Arc::new(shares))))
    }

    pub(crate) fn now(&self) -> Arc<Shares> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Others count from here on.
    pub(crate) fn replace(&self, shares: Arc<Shares>) {
        shares.enforce(&self.now());
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = shares;
    }
}
