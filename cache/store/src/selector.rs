//! Selection of shards by their URLs.

use std::sync::Arc;

/// Returns true for the URLs that are selected.
pub(crate) type Selector = Arc<dyn Fn(&str) -> bool + Send + Sync>;
