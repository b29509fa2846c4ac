//! From a URL and a client's options to the source that serves it.
//!
//! Equal questions get the same source, so connections are shared, and how many are
//! remembered is bounded whatever clients ask for.

use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use forebay_error::{Error, ErrorKind, Result};
use lru::LruCache;

use crate::commands::{self, Commands};
use crate::credentials::Lending;
use crate::file_sink::FileSink;
use crate::linked::{Linked, Worked};
use crate::listing::{self, LeftOut, Listing};
use crate::network::{Gate, Network};
use crate::posix::{Posix, path_of};
use crate::readers::{Client, Permit, Readers};
use crate::remote::{
    BucketSink, Counters, Direction, Http, Hub, LinkReport, Remote, StoreClient, Wire, azure, gcs,
    s3,
};
use crate::rules::{self, Rule, Rules};
use crate::scheme::Scheme;
use crate::{Limits, Options, Sink, Source, signature};

/// Sources remembered: a node has a handful of buckets; this bounds what hostile clients can make.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(256).expect("256 is not zero");

/// Scheme and host or bucket, what is said about reaching it, and the number of its rule.
type Key = (String, Options, Option<usize>);

/// Reads with the client's own rights: files that it opens, and commands that it runs.
#[derive(Clone)]
pub struct ByClient {
    files: Own,
    commands: Own,
    permit: Option<Arc<dyn Permit>>,
}

/// A source of one client's.
#[derive(Clone)]
struct Own {
    /// For its work.
    now: Arc<dyn Source>,
    /// For what is kept when the client is gone.
    lasting: Arc<dyn Source>,
}

impl ByClient {
    /// The same source for what may outlive the client: it keeps none of the client's readers.
    #[must_use]
    pub fn lasting(&self, source: &Arc<dyn Source>) -> Arc<dyn Source> {
        let own = [&self.files, &self.commands].into_iter();
        let mut same = own.filter(|own| Arc::ptr_eq(&own.now, source));
        same.next().map_or(source, |own| &own.lasting).clone()
    }

    /// Returns the tenant by which other nodes judge what this one reads there.
    #[must_use]
    pub fn tenant(&self) -> Option<String> {
        self.permit.as_ref()?.tenant()
    }

    /// This one's source, if `source` is the same of another client.
    #[must_use]
    pub fn instead_of(&self, source: &Arc<dyn Source>) -> Option<Arc<dyn Source>> {
        let is_a_clients = source.scope() != source.endpoint();
        let own = [&self.files, &self.commands].into_iter();
        let mut same = own.map(|own| &own.now).filter(|own| own.endpoint() == source.endpoint());
        same.find(|own| is_a_clients && own.scope() != source.scope()).cloned()
    }
}

/// Returns the error for a URL that no source names: another user's job may not choose a network
/// address.
fn unnamed() -> Error {
    let what = "this daemon serves other users only from stores of a [[source]]";
    Error::new(ErrorKind::PermissionDenied, what)
        .advise("ask an admin to add one, or use an embedded daemon: daemon=\"embedded\"")
}

/// Returns the error for a URL that only has readers.
fn read_only() -> Error {
    Error::new(ErrorKind::Invalid, "nothing can be written to URLs of this kind")
        .advise("use s3://, gs://, az://, file:// or a path")
}

/// Returns the client's permit, if its rights are narrower than the daemon's.
fn permit(client: Option<&ByClient>) -> Option<&Arc<dyn Permit>> {
    client.and_then(|client| client.permit.as_ref())
}

/// Every store that this process reads from, or writes to.
pub struct Sources {
    posix: Arc<Posix>,
    files: Arc<FileSink>,
    readers: Readers,
    lending: Lending,
    ruled: RwLock<Arc<Ruled>>,
    /// True if files that clients name are opened without a rule.
    opens_named: bool,
    /// Signed links that worked.
    worked: Arc<Worked>,
    /// Sources supplied by the caller, by scheme.
    brought: Vec<(String, Arc<dyn Source>)>,
}

/// Decisions of an administrator's rules, and the sources opened by them.
struct Ruled {
    rules: Rules,
    wire: Arc<Wire>,
    open: Mutex<LruCache<Key, Arc<dyn Source>>>,
    sinks: Mutex<LruCache<Key, Arc<dyn Sink>>>,
}

impl Ruled {
    fn new(rules: Rules, wire: Wire) -> Arc<Self> {
        let open = Mutex::new(LruCache::new(REMEMBERED));
        let sinks = Mutex::new(LruCache::new(REMEMBERED));
        Arc::new(Self { rules, wire: Arc::new(wire), open, sinks })
    }

    /// The rule for the URL of a store, for this client.
    fn rule(&self, url: &str, client: Option<&ByClient>) -> Result<Option<(usize, &Rule)>> {
        named(self.rules.of(url)?, url, client)
    }

    /// The same for a URL that may be a folder's.
    fn rule_of_folder(
        &self,
        url: &str,
        client: Option<&ByClient>,
    ) -> Result<Option<(usize, &Rule)>> {
        named(self.rules.of_folder(url)?, url, client)
    }
}

/// Rejects a URL without a rule, if the client's rights are narrower than the daemon's.
fn named<R>(rule: Option<R>, url: &str, client: Option<&ByClient>) -> Result<Option<R>> {
    match permit(client).is_some() && rule.is_none() {
        true => Err(unnamed().at("url", url)),
        false => Ok(rule),
    }
}

/// A store, as its rule lets a client use it.
struct Permitted<'a> {
    scheme: Scheme,
    /// Host or bucket.
    host: &'a str,
    key: Key,
    network: Network,
    rule: Option<&'a Rule>,
}

impl<'a> Permitted<'a> {
    fn new(
        url: &'a str,
        options: &Options,
        client: Option<&ByClient>,
        rule: Option<(usize, &'a Rule)>,
    ) -> Result<Self> {
        let (scheme, rest) = url.split_once("://").unwrap_or_default();
        let host = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let store = Scheme::of(scheme).ok_or_else(|| {
            let what = format!("URLs of the scheme '{scheme}' are not supported");
            Error::new(ErrorKind::Invalid, what)
                .advise("use s3://, gs://, az://, hf://, https://, http://, file:// or a path")
        })?;
        // Plain HTTP has no use for options; forgetting them shares its connections among clients.
        let options = match (rule, store.family()) {
            (Some((_, rule)), _) => {
                let ruled = rule.over(options, store)?;
                match permit(client) {
                    Some(_) => rule.pinned(ruled, store, host)?,
                    None => ruled,
                }
            }
            (None, Some(family)) => options.of(family),
            (None, None) => Options::default(),
        };
        let key = (format!("{scheme}://{host}"), options, rule.map(|(number, _)| number));
        let rule = rule.map(|(_, rule)| rule);
        let network = rule.map(Rule::network).unwrap_or_default();
        Ok(Self { scheme: store, host, key, network, rule })
    }

    fn client(
        &'a self,
        ruled: &'a Ruled,
        lending: &'a Lending,
        direction: Direction,
    ) -> StoreClient<'a> {
        StoreClient {
            root: &self.key.0,
            options: &self.key.1,
            profile: self.rule.and_then(|rule| rule.profile.as_deref()),
            lending,
            wire: &ruled.wire,
            network: &self.network,
            limits: self.rule.map(|rule| rule.limits).unwrap_or_default(),
            direction,
        }
    }
}

/// Rules that can be kept, and do not count yet.
pub struct NewRules(Arc<Ruled>);

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
            files: Arc::new(FileSink::new(limits.file_timeout)),
            readers,
            lending: Lending::new(Vec::new(), false),
            ruled: RwLock::new(Ruled::new(Rules::default(), Wire::new(limits, Gate::default())?)),
            opens_named: true,
            worked: Arc::default(),
            brought: Vec::new(),
        })
    }

    /// The same, with a source of the caller's own for URLs of the form `scheme://…`.
    #[must_use]
    pub fn with(mut self, scheme: &str, source: Arc<dyn Source>) -> Self {
        self.brought.push((scheme.to_owned(), source));
        self
    }

    /// The same, with AWS credentials for those who have no key pair: `command` is that of a
    /// process that runs [`crate::lend`], and `own` says whether whoever asks is this process's own
    /// user, whose files in their home count.
    #[must_use]
    pub fn lending(mut self, command: Vec<OsString>, own: bool) -> Self {
        self.lending = Lending::new(command, own);
        self
    }

    /// The same, ruled by an administrator.
    ///
    /// # Errors
    /// `Unavailable` if no TLS client can be set up.
    pub fn ruled(self, rules: Rules) -> Result<Self> {
        self.rule(self.prepare(rules)?);
        Ok(self)
    }

    /// Gets everything ready to go by other rules.
    ///
    /// # Errors
    /// `Unavailable` if no TLS client can be set up.
    pub fn prepare(&self, rules: Rules) -> Result<NewRules> {
        let wire = self.now().wire.behind(rules.gate())?;
        Ok(NewRules(Ruled::new(rules, wire)))
    }

    /// Goes by other rules from now on. What was opened by the old ones goes on; of links that only
    /// another limit is set for, all heed it.
    pub fn rule(&self, new: NewRules) {
        let before = self.now();
        for (old, new) in before.rules.relimited(&new.0.rules) {
            before.wire.relimit(old, new);
        }
        *self.ruled.write().unwrap_or_else(PoisonError::into_inner) = new.0;
        // Who changes the rules may have changed the files of credentials, too.
        self.lending.renew();
    }

    fn now(&self) -> Arc<Ruled> {
        self.ruled.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The same, which opens a file by its path only where a rule says so; others the client opens
    /// whose job names them.
    #[must_use]
    pub fn opening_by_rule(mut self) -> Self {
        self.opens_named = false;
        self
    }

    /// Returns the source of files and commands of this client.
    #[must_use]
    pub fn by_client(&self, client: &Client) -> ByClient {
        let by_client = self.readers.of_client(client);
        let files = |by_client| -> Arc<dyn Source> {
            Arc::new(Posix::of_client(self.readers.clone(), client, by_client))
        };
        let commands = |by_client| -> Arc<dyn Source> {
            Arc::new(Commands::new(self.readers.clone(), client, by_client))
        };
        let lent = by_client.lent();
        ByClient {
            files: Own { now: files(by_client.clone()), lasting: files(lent.clone()) },
            commands: Own { now: commands(by_client), lasting: commands(lent) },
            permit: client.permit.clone(),
        }
    }

    /// The source that serves `url` to a client with `options`. Does not connect.
    ///
    /// # Errors
    /// As [`Sources::open_for`].
    pub fn open(&self, url: &str, options: &Options) -> Result<Arc<dyn Source>> {
        self.open_for(url, options, None)
    }

    /// The same to a client that opens files itself.
    ///
    /// # Errors
    /// `Invalid` for a URL or options that make no sense, `PermissionDenied` if a store needs
    /// credentials and there are none, if no rule lets the URL be used, or if this client may not
    /// read it.
    pub fn open_for(
        &self,
        url: &str,
        options: &Options,
        client: Option<&ByClient>,
    ) -> Result<Arc<dyn Source>> {
        if let Some(permit) = permit(client) {
            permit.read(url)?;
        }
        let source = self.reach(url, options, client)?;
        match signature::is_signed(url) {
            true => Ok(Arc::new(Linked::new(source, url, self.worked.clone()))),
            false => Ok(source),
        }
    }

    /// Returns true if every node with these rules reads the shard at `url` with the same rights:
    /// they are those of a rule or of anybody, not those of a job with `options`.
    #[must_use]
    pub fn reads_by_rule(&self, url: &str, options: &Options) -> bool {
        let ruled = self.now();
        let takes_none = match ruled.rules.of(url) {
            Ok(rule) => rule.is_some_and(|(_, rule)| rule.takes_no_credentials()),
            Err(_) => return false,
        };
        !signature::is_signed(url)
            && forebay_error::command(url).is_none()
            && (takes_none || !rules::has_credentials(options))
    }

    /// The source of a URL or a pattern that this client may ask about.
    fn reach(
        &self,
        url: &str,
        options: &Options,
        client: Option<&ByClient>,
    ) -> Result<Arc<dyn Source>> {
        let at = |error: Error| error.at("url", url);
        if forebay_error::command(url).is_some() {
            let client = client.ok_or_else(|| at(commands::only_in_jobs()))?;
            return Ok(client.commands.now.clone());
        }
        let Some((scheme, _)) = url.split_once("://").filter(|(scheme, _)| *scheme != "file")
        else {
            path_of(url)?;
            return self.open_file(url, client);
        };
        let ruled = self.now();
        let rule = ruled.rule(url, client)?;
        if let Some((_, source)) = self.brought.iter().find(|(brought, _)| brought == scheme) {
            return Ok(Arc::clone(source));
        }
        let permitted = Permitted::new(url, options, client, rule).map_err(at)?;
        let mut open = ruled.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(source) = open.get(&permitted.key) {
            return Ok(Arc::clone(source));
        }
        let store_client = permitted.client(&ruled, &self.lending, Direction::Reads);
        let instead = permitted.rule.and_then(|rule| rule.endpoint.as_deref());
        let host = permitted.host;
        let source: Arc<dyn Source> = match permitted.scheme {
            Scheme::S3 => Arc::new(Remote::new(s3::open(host, &store_client).map_err(at)?)),
            Scheme::Google => Arc::new(Remote::new(gcs::open(host, &store_client).map_err(at)?)),
            Scheme::Azure => Arc::new(Remote::new(azure::open(host, &store_client).map_err(at)?)),
            Scheme::Hub => Arc::new(Remote::new(Hub::new(&store_client).map_err(at)?)),
            Scheme::Http => {
                Arc::new(Remote::new(Http::new(url, instead, &store_client).map_err(at)?))
            }
        };
        open.put(permitted.key.clone(), Arc::clone(&source));
        Ok(source)
    }

    /// The sink that writes `url`, and what lies below it, for a client with `options`, whose right
    /// to write there the caller has checked: of a store that sources may use, or files that this
    /// process opens by their paths. Does not connect.
    ///
    /// # Errors
    /// As [`Sources::open_for`]; `Invalid` for a URL that nothing can be written to.
    pub fn sink(
        &self,
        url: &str,
        options: &Options,
        client: Option<&ByClient>,
    ) -> Result<Arc<dyn Sink>> {
        let at = |error: Error| error.at("url", url);
        if forebay_error::command(url).is_some() {
            return Err(at(read_only()));
        }
        if url.split_once("://").is_none_or(|(scheme, _)| scheme == "file") {
            path_of(url)?;
            return self.file_sink(url, client);
        }
        let ruled = self.now();
        let rule = ruled.rule_of_folder(url, client)?;
        let permitted = Permitted::new(url, options, client, rule).map_err(at)?;
        let mut sinks = ruled.sinks.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(sink) = sinks.get(&permitted.key) {
            return Ok(Arc::clone(sink));
        }
        let store_client = permitted.client(&ruled, &self.lending, Direction::Writes);
        let bucket = match permitted.scheme {
            Scheme::S3 => s3::open(permitted.host, &store_client),
            Scheme::Google => gcs::open(permitted.host, &store_client),
            Scheme::Azure => azure::open(permitted.host, &store_client),
            Scheme::Hub | Scheme::Http => Err(read_only()),
        };
        let sink: Arc<dyn Sink> = Arc::new(BucketSink::new(bucket.map_err(at)?));
        sinks.put(permitted.key.clone(), Arc::clone(&sink));
        Ok(sink)
    }

    /// Returns the writer of files, where this process opens them by their paths for this client.
    fn file_sink(&self, url: &str, client: Option<&ByClient>) -> Result<Arc<dyn Sink>> {
        let ruled = self.now();
        let is_named = ruled.rules.of_folder(url)?.is_some() || self.opens_named;
        if is_named && permit(client).is_none() {
            return Ok(Arc::clone(&self.files) as Arc<dyn Sink>);
        }
        let what = "this daemon does not write files named by jobs";
        Err(Error::new(ErrorKind::PermissionDenied, what)
            .at("url", url)
            .advise("write to an object store"))
    }

    /// Returns the reader of a file for a client: the daemon, or the client's own descriptors.
    fn open_file(&self, url: &str, client: Option<&ByClient>) -> Result<Arc<dyn Source>> {
        let is_others = permit(client).is_some();
        let named = self.now().rules.of(url).map(|rule| self.opens_named || rule.is_some());
        match (named, client) {
            (Ok(true), _) if !is_others => Ok(Arc::clone(&self.posix) as Arc<dyn Source>),
            // Without a rule for the daemon, the client's own rights decide.
            (_, Some(client)) => Ok(client.files.now.clone()),
            (Err(error), None) => Err(error),
            (Ok(_), None) => {
                let what = "this daemon does not open files named by jobs";
                Err(Error::new(ErrorKind::PermissionDenied, what).at("url", url).advise(
                    "install the daemon's release for the job too, which then opens them; or ask an admin for a [[source]] that matches them",
                ))
            }
        }
    }

    /// The shards that a pattern of a remote store means to a client with `options`, by name.
    ///
    /// # Errors
    /// As [`Sources::open`] and [`Source::list`]; `NotFound` if nothing matches.
    pub async fn list(&self, pattern: &str, options: &Options) -> Result<Listing> {
        self.list_for(pattern, options, None).await
    }

    /// The same to a client that opens files itself.
    ///
    /// # Errors
    /// As [`Sources::open_for`] and [`Source::list`]; `NotFound` if nothing matches.
    pub async fn list_for(
        &self,
        pattern: &str,
        options: &Options,
        client: Option<&ByClient>,
    ) -> Result<Listing> {
        let bucket = pattern.split_once("://").and_then(|(_, rest)| rest.split('/').next());
        if bucket.is_some_and(|bucket| bucket.contains(['*', '?', '['])) {
            let error = Error::new(ErrorKind::Invalid, "a bucket's name may not be a pattern");
            return Err(error.at("urls", pattern));
        }
        let permit = permit(client);
        if let Some(permit) = permit {
            permit.list(pattern)?;
        }
        let mut listed = self.reach(pattern, options, client)?.list(pattern).await?;
        // A pattern may match more than one that passes as text.
        let ruled = self.now();
        let rule = ruled.rules.of(pattern)?.map(|(number, _)| number);
        let is_same = |url: &str| match rule {
            Some(rule) => matches!(ruled.rules.of(url), Ok(Some((of, _))) if of == rule),
            None => true,
        };
        let may = |url: &str| is_same(url) && permit.is_none_or(|permit| permit.shows(url));
        listed.urls.retain(|url| may(url));
        if let (Some(permit), Some(root)) = (permit, root_of(pattern)) {
            // Of keys in folders that this client may not read it learns nothing.
            listed.left_out.retain(|key| permit.shows(&format!("{root}{key}")));
        }
        let listed = Listing { left_out: listed.left_out.cut(), ..listed };
        if let LeftOut { count: count @ 1.., keys } = &listed.left_out {
            let pattern = forebay_error::shown(pattern);
            let what = "left keys out of a listing that no URL can name";
            tracing::warn!(pattern, count, ?keys, "{what}");
        }
        match listed.urls.is_empty() {
            false => Ok(listed),
            // As where there is nothing: that there is something is not for this client to know.
            true => Err(listing::none(pattern, listed.left_out)),
        }
    }

    /// Returns the readers of files.
    #[must_use]
    pub fn readers(&self) -> &Readers {
        &self.readers
    }

    /// Each endpoint that was asked, by its address.
    #[must_use]
    pub fn links(&self) -> Vec<LinkReport> {
        self.now().wire.links()
    }

    /// Returns the network counters.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.now().wire.counters()
    }
}

/// Returns the part of a URL in front of its key: scheme and bucket, with a `/` behind.
fn root_of(url: &str) -> Option<&str> {
    let bucket = url.find("://")? + "://".len();
    let slash = bucket + url[bucket..].find('/')?;
    Some(&url[..=slash])
}
