//! Selection of present shards: by a URL, by a pattern of URLs, or by the name of a data set.
//!
//! A URL selects itself, present or not; a pattern or a name selects present shards.

use std::collections::BTreeSet;
use std::sync::Arc;

use forebay_error::Result;
use forebay_policy::Evict;

use super::Store;
use super::pin::away;
use crate::dataset::Dataset;
use crate::pins::WILD;
use crate::selector::Selector;

impl Store {
    /// Returns the selected URLs, sorted.
    ///
    /// # Errors
    /// `Invalid` for an invalid pattern, `Unavailable` if the content of a tier is unknown.
    pub async fn select(&self, text: &str) -> Result<Vec<String>> {
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

    /// Selector for a pattern or a data set; none if the text is one URL.
    fn is_meant(&self, text: &str) -> Result<Option<Selector>> {
        let rules = self.datasets();
        if let Some(at) = rules.iter().position(|rule| rule.name == text) {
            // The last data set has the shards of no other.
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
