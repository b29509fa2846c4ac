//! From a URL and a client's options to the source that serves it.
//!
//! Its rule: equal questions get the same source, so connections are shared, and how many are
//! remembered is bounded whatever clients ask for.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError};

use forebay_error::{Error, ErrorKind, Result};
use lru::LruCache;

use crate::posix::{Posix, path_of};
use crate::readers::Readers;
use crate::remote::{Counters, Http, LinkReport, Remote, S3, Wire};
use crate::{Limits, Options, Source};

/// Sources remembered: a node has a handful of buckets; this bounds what hostile clients can make.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(256).expect("256 is not zero");

/// Scheme and host or bucket, and what the client said about reaching it.
type Key = (String, Options);

/// Every store that this process reads from.
pub struct Sources {
    posix: Arc<Posix>,
    readers: Readers,
    wire: Arc<Wire>,
    /// What whoever composes them brought, by scheme.
    brought: Vec<(String, Arc<dyn Source>)>,
    open: Mutex<LruCache<Key, Arc<dyn Source>>>,
}

impl Sources {
    /// Sources that stay within `limits`; `reader` is the command of a process that runs
    /// [`crate::serve`], which reads files.
    ///
    /// # Errors
    /// `Invalid` if a limit is zero; `Unavailable` if no TLS client can be set up.
    pub fn new(reader: Vec<OsString>, limits: Limits) -> Result<Self> {
        let readers = Readers::new(reader, limits.file_timeout)?;
        Ok(Self {
            posix: Arc::new(Posix::new(readers.clone())),
            readers,
            wire: Arc::new(Wire::new(limits)?),
            brought: Vec::new(),
            open: Mutex::new(LruCache::new(REMEMBERED)),
        })
    }

    /// The same, with a source of the caller's own for URLs of the form `scheme://…`.
    #[must_use]
    pub fn with(mut self, scheme: &str, source: Arc<dyn Source>) -> Self {
        self.brought.push((scheme.to_owned(), source));
        self
    }

    /// The source that serves `url` to a client with `options`. Does not connect.
    ///
    /// # Errors
    /// `Invalid` for a URL or options that make no sense, `PermissionDenied` if an S3 store needs
    /// credentials and the options have none.
    pub fn open(&self, url: &str, options: &Options) -> Result<Arc<dyn Source>> {
        let at = |error: Error| error.at("url", url);
        let Some((scheme, rest)) = url.split_once("://").filter(|(scheme, _)| *scheme != "file")
        else {
            path_of(url)?;
            return Ok(Arc::clone(&self.posix) as Arc<dyn Source>);
        };
        if let Some((_, source)) = self.brought.iter().find(|(brought, _)| brought == scheme) {
            return Ok(Arc::clone(source));
        }
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        // Plain HTTP has no use for options; forgetting them shares its connections among clients.
        let options = if scheme == "s3" { options.understood() } else { Options::default() };
        let key = (format!("{scheme}://{host}"), options);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(source) = open.get(&key) {
            return Ok(Arc::clone(source));
        }
        let source: Arc<dyn Source> = match scheme {
            "s3" => Arc::new(Remote::new(S3::new(host, &key.1, &self.wire).map_err(at)?)),
            "http" | "https" => Arc::new(Remote::new(Http::new(url, &self.wire).map_err(at)?)),
            other => {
                let what = format!("URLs of the scheme '{other}' are not supported yet");
                let error = at(Error::new(ErrorKind::Invalid, what));
                return Err(error.advise("use s3://, https://, http://, file:// or a path"));
            }
        };
        open.put(key, Arc::clone(&source));
        Ok(source)
    }

    /// What reads files.
    #[must_use]
    pub fn readers(&self) -> &Readers {
        &self.readers
    }

    /// Each endpoint that was asked, by its address.
    #[must_use]
    pub fn links(&self) -> Vec<LinkReport> {
        self.wire.links()
    }

    /// What has gone over the network so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.wire.counters()
    }
}
