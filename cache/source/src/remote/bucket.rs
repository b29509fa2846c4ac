//! A bucket or container: how the object stores are the same.
//!
//! A URL names an object by everything behind the bucket, literally; what differs between
//! stores is settled when one is opened (`s3.rs`, `gcs.rs`, `azure.rs`).

use std::borrow::Cow;
use std::sync::Arc;

use async_trait::async_trait;
use forebay_error::{Error, ErrorKind, Result};
use object_store::ObjectStore;
use object_store::list::{PaginatedListOptions, PaginatedListResult, PaginatedListStore};
use object_store::multipart::MultipartStore;
use object_store::path::Path;

use super::link::Target;
use super::refusal::Refusals;
use super::s3_attributes::Attributes;
use super::wire::noting;
use super::{Route, Store, StoreClient};
use crate::listing::{Found, Listing, Wanted};
use crate::origin_checksum::Comparison;
use crate::stat::Stat;

/// A store that also lists what it has, page by page, and takes objects in parts.
pub(super) trait ObjectBucket: ObjectStore + PaginatedListStore + MultipartStore {}

impl<T: ObjectStore + PaginatedListStore + MultipartStore> ObjectBucket for T {}

/// One bucket or container as one client reaches it.
pub(crate) struct Bucket {
    /// Prefix of its objects' URLs, such as `s3://bucket`.
    root: String,
    pub(super) store: Arc<dyn ObjectBucket>,
    pub(super) route: Route,
    /// Access to the store's checksums, and to its uploads in parts.
    pub(super) attributes: Option<Attributes>,
    /// True if it is known that the store honours conditions of writes.
    pub(super) is_conditional: bool,
}

impl Bucket {
    pub(super) fn new(
        store_client: &StoreClient<'_>,
        store: impl ObjectBucket,
        refusals: Refusals,
    ) -> Self {
        Self {
            root: store_client.root.to_owned(),
            store: Arc::new(store),
            route: Route::new(store_client, refusals),
            attributes: None,
            is_conditional: false,
        }
    }

    /// The same, whose store honours conditions of writes by its own documentation if `is_known`.
    pub(super) fn conditional(mut self, is_known: bool) -> Self {
        self.is_conditional = is_known;
        self
    }

    /// The same, whose store tells checksums.
    pub(super) fn telling(mut self, attributes: Attributes) -> Self {
        self.attributes = Some(attributes);
        self
    }

    /// Returns the path in the bucket of the object behind `url`.
    pub(super) fn location(&self, url: &str) -> Result<Path> {
        let at = |error: Error| error.at("url", url);
        let key = url.strip_prefix(&self.root).and_then(|rest| rest.strip_prefix('/'));
        let key = key.filter(|key| !key.is_empty());
        let key = key.ok_or_else(|| at(invalid("the URL names no object of this bucket")))?;
        // Read on without it, as if that were the same object.
        if key.starts_with('/') || key.ends_with('/') {
            let error = invalid("invalid key: it begins or ends with `/`");
            return Err(at(error).advise("write s3://bucket/key with one `/` between names"));
        }
        Path::parse(key).map_err(|error| at(invalid(&format!("invalid key: {error}"))))
    }

    /// Returns the prefix of the keys in the folder `url`.
    pub(super) fn folder(&self, url: &str) -> Result<String> {
        let rest =
            url.strip_prefix(&self.root).filter(|rest| matches!(rest.get(..1), None | Some("/")));
        let Some(rest) = rest else {
            return Err(invalid("the URL names no folder of this bucket").at("url", url));
        };
        match rest.trim_matches('/') {
            "" => Ok(String::new()),
            _ => Ok(format!("{}/", self.location(url.trim_end_matches('/'))?)),
        }
    }

    /// One page of what lies below the pattern's prefix.
    async fn page(
        &self,
        pattern: &str,
        wanted: &Wanted,
        token: Option<String>,
    ) -> Result<(PaginatedListResult, Vec<String>)> {
        let refusals = &self.route.refusals;
        let page = async || {
            let delimiter = wanted.is_flat().then_some(Cow::Borrowed("/"));
            let page_token = token.clone();
            let options = PaginatedListOptions { delimiter, page_token, ..Default::default() };
            let prefix = Some(wanted.prefix()).filter(|prefix| !prefix.is_empty());
            let answers = refusals.answers();
            let (page, noted) = noting(self.store.list_paginated(prefix, options)).await;
            let page = page.map(|page| (page, noted.odd_keys.clone()));
            page.map_err(|e| refusals.explain(&e, pattern, &noted, answers))
        };
        self.route.asked(None, Target { folder: &self.root, url: pattern }, page).await
    }
}

#[async_trait]
impl Store for Bucket {
    fn locate(&self, url: &str) -> Result<(Arc<dyn ObjectStore>, Path)> {
        Ok((self.store.clone(), self.location(url)?))
    }

    fn route(&self) -> &Route {
        &self.route
    }

    async fn origin_checksum(&self, url: &str, stat: &Stat) -> Option<Comparison> {
        let (attributes, key) = (self.attributes.as_ref()?, self.location(url).ok()?);
        attributes.of(&self.route, key.as_ref(), stat).await
    }

    async fn list(&self, pattern: &str) -> Result<Listing> {
        let at = |error: Error| error.at("urls", pattern);
        let key = pattern.strip_prefix(&self.root).and_then(|rest| rest.strip_prefix('/'));
        let key = key.ok_or_else(|| at(invalid("the pattern names another bucket")))?;
        let wanted = Wanted::new(key).map_err(at)?;
        let mut found = Found::default();
        let mut token = None;
        loop {
            let (page, odd) = self.page(pattern, &wanted, token).await?;
            found.leave_out(&wanted, odd);
            let keys = page.result.objects.into_iter().map(|object| object.location.into());
            token = found.page(&wanted, keys, page.page_token).map_err(at)?;
            if token.is_none() {
                break;
            }
        }
        Ok(found.listing(&format!("{}/", self.root)))
    }
}

/// Returns the part of the options object_store rejects, without the values.
pub(super) fn unfit(store: &str, error: &object_store::Error) -> Error {
    let reason = match error {
        object_store::Error::UnknownConfigurationKey { .. } => "unknown key",
        _ => "bad value",
    };
    invalid(&format!("the options for {store} contradict each other")).at("reason", reason)
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, what)
}
