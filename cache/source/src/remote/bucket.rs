//! A bucket or container: how the object stores are the same.
//!
//! Its rule: a URL names an object by everything behind the bucket, literally; what differs between
//! stores is settled when one is opened (`s3.rs`, `gcs.rs`, `azure.rs`).

use std::borrow::Cow;
use std::sync::Arc;

use async_trait::async_trait;
use forebay_error::{Error, ErrorKind, Result};
use forebay_uring::Span;
use object_store::ObjectStore;
use object_store::list::{PaginatedListOptions, PaginatedListResult, PaginatedListStore};
use object_store::path::Path;

use super::refusal::Refusals;
use super::{Object, Reach, Wire};
use crate::listing::{Found, Wanted};
use crate::rules::RateLimits;
use crate::{Source, Stat};

/// A store that also lists what it has, page by page.
pub(super) trait Listed: ObjectStore + PaginatedListStore {}

impl<T: ObjectStore + PaginatedListStore> Listed for T {}

/// One bucket or container as one client reaches it.
pub(crate) struct Bucket {
    /// What the URLs of its objects start with, such as `s3://bucket`.
    root: String,
    store: Box<dyn Listed>,
    wire: Arc<Wire>,
    refusals: Refusals,
    limits: RateLimits,
}

impl Bucket {
    pub(super) fn new(reach: &Reach<'_>, store: impl Listed, refusals: Refusals) -> Self {
        Self {
            root: reach.root.to_owned(),
            store: Box::new(store),
            wire: Arc::clone(reach.wire),
            refusals,
            limits: reach.limits,
        }
    }

    /// Where in the bucket the object behind `url` lies.
    fn location(&self, url: &str) -> Result<Path> {
        let at = |error: Error| error.at("url", url);
        let key = url.strip_prefix(&self.root).and_then(|rest| rest.strip_prefix('/'));
        let key = key.filter(|key| !key.is_empty());
        let key = key.ok_or_else(|| at(invalid("the URL names no object of this bucket")))?;
        Path::parse(key).map_err(|error| at(invalid(&format!("the key cannot be used: {error}"))))
    }

    /// One page of what lies below the pattern's prefix.
    async fn page(
        &self,
        wanted: &Wanted,
        token: Option<String>,
    ) -> object_store::Result<PaginatedListResult> {
        let ask = |page_token: Option<String>| {
            let delimiter = wanted.is_flat().then_some(Cow::Borrowed("/"));
            let options = PaginatedListOptions { delimiter, page_token, ..Default::default() };
            let prefix = Some(wanted.prefix()).filter(|prefix| !prefix.is_empty());
            self.store.list_paginated(prefix, options)
        };
        let answers = self.refusals.answers();
        match ask(token.clone()).await {
            Err(error) if self.refusals.renewed(&error, answers) => ask(token).await,
            page => page,
        }
    }

    fn object<'a>(&'a self, url: &'a str, location: &'a Path) -> Object<'a> {
        let Self { wire, refusals, .. } = self;
        Object { url, store: self.store.as_ref(), location, wire, refusals }
    }
}

#[async_trait]
impl Source for Bucket {
    async fn stat(&self, url: &str) -> Result<Stat> {
        self.object(url, &self.location(url)?).stat().await
    }

    async fn read_part(&self, url: &str, stat: &Stat, offset: u64, into: Span) -> Result<Span> {
        self.object(url, &self.location(url)?).read_part(stat, offset, into).await
    }

    async fn list(&self, pattern: &str) -> Result<Vec<String>> {
        let at = |error: Error| error.at("urls", pattern);
        let key = pattern.strip_prefix(&self.root).and_then(|rest| rest.strip_prefix('/'));
        let key = key.ok_or_else(|| at(invalid("the pattern is not of this bucket")))?;
        let wanted = Wanted::new(key).map_err(at)?;
        let mut found = Found::default();
        let mut token = None;
        loop {
            let page = self.page(&wanted, token).await;
            let page = page.map_err(|error| self.refusals.explain(&error, pattern))?;
            let keys = page.result.objects.into_iter().map(|object| object.location.into());
            token = found.page(&wanted, keys, page.page_token).map_err(at)?;
            if token.is_none() {
                break;
            }
        }
        let urls: Vec<_> = found.into_keys().map(|key| format!("{}/{key}", self.root)).collect();
        match urls.is_empty() {
            false => Ok(urls),
            true => Err(at(Error::new(ErrorKind::NotFound, "no object matches the glob"))),
        }
    }

    fn endpoint(&self) -> &str {
        &self.refusals.endpoint
    }

    fn rate_limits(&self) -> RateLimits {
        self.limits
    }
}

/// Which part of the options object_store complains about, without their values.
pub(super) fn unfit(store: &str, error: &object_store::Error) -> Error {
    let reason = match error {
        object_store::Error::UnknownConfigurationKey { .. } => "unknown key",
        _ => "bad value",
    };
    invalid(&format!("the options for {store} do not fit together")).at("reason", reason)
}

fn invalid(what: &str) -> Error {
    Error::new(ErrorKind::Invalid, what)
}
