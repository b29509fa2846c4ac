//! Which shards here somebody means: by a URL, by a pattern of URLs, or by a data set's name.
//!
//! One rule: a URL means itself, be it here or not; a pattern and a name mean what is here of them.

use std::collections::BTreeSet;
use std::sync::Arc;

use forebay_error::Result;
use forebay_policy::Evict;

use super::Store;
use super::pin::away;
use crate::dataset::Dataset;
use crate::pins::WILD;

/// Says of a URL whether it is meant.
pub(crate) type IsMeant = Arc<dyn Fn(&str) -> bool + Send + Sync>;

impl Store {
    /// The URLs that a text means, in order.
    ///
    /// # Errors
    /// `Invalid` for a pattern that is none, `Unavailable` if it is not known what a tier holds.
    pub async fn meant(&self, text: &str) -> Result<Vec<String>> {
        let Some(is_meant) = self.is_meant(text)? else { return Ok(vec![text.to_owned()]) };
        let mut urls = BTreeSet::new();
        for tier in &self.inner.tiers {
            if !tier.is_readable() {
                return Err(away(tier));
            }
            urls.extend(tier.urls(&is_meant).await?);
        }
        Ok(urls.into_iter().collect())
    }

    /// What a text means of all that may be here; none if it is one URL.
    fn is_meant(&self, text: &str) -> Result<Option<IsMeant>> {
        let rules = self.datasets();
        if let Some(at) = rules.iter().position(|rule| rule.name == text) {
            // What none of the others has is the last one's.
            let rest = rules.len() - 1;
            let first = move |url: &str| rules[..rest].iter().position(|rule| rule.has(url));
            return Ok(Some(Arc::new(move |url| first(url).unwrap_or(rest) == at)));
        }
        if !text.contains(WILD) {
            return Ok(None);
        }
        let pattern = Dataset::new(text, text, Evict::default())?;
        Ok(Some(Arc::new(move |url| pattern.has(url))))
    }
}
