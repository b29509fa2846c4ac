//! Credentials of a client.
//!
//! The client's options come first, then the machine's credentials for everyone. Credentials of
//! this process count only where an administrator says so.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::num::NonZeroUsize;
use std::sync::{Mutex, PoisonError};

use lru::LruCache;

use super::program::Program;
use super::{Identity, PACE};
use crate::Options;

/// Identities remembered: users and roles at work on a node; this bounds what clients can make.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(64).expect("64 is not zero");

/// The variables of a client's that its credentials come from.
const SOURCES: [&str; 15] = [
    "AWS_CONFIG_FILE",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_DEFAULT_REGION",
    "AWS_EC2_METADATA_DISABLED",
    "AWS_EC2_METADATA_SERVICE_ENDPOINT",
    "AWS_ENDPOINT_URL_STS",
    "AWS_PROFILE",
    "AWS_REGION",
    "AWS_ROLE_ARN",
    "AWS_ROLE_SESSION_NAME",
    "AWS_SHARED_CREDENTIALS_FILE",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
];

/// The files that the chain reads in a user's home.
const FILES: [&str; 2] = ["AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"];

/// A file without profiles.
const NO_FILE: &str = "/dev/null";

/// A key pair beats a profile; where a profile is named, a pair is not to be there.
const PAIR: [&str; 3] = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"];

/// Lender of credentials to clients.
pub(crate) struct Lending {
    /// Runs [`super::lend`]; empty: nobody lends.
    command: Vec<OsString>,
    /// True if this process belongs to its clients' user: its home is theirs.
    own: bool,
    identities: Mutex<LruCache<Program, Identity>>,
}

impl Lending {
    pub(crate) fn new(command: Vec<OsString>, own: bool) -> Self {
        Self { command, own, identities: Mutex::new(LruCache::new(REMEMBERED)) }
    }

    /// Returns true if any credentials are lent.
    pub(crate) fn is_open(&self) -> bool {
        !self.command.is_empty()
    }

    /// The identity of a client with `options`; `amazons`: for a store on Amazon's machines'
    /// network, which elsewhere would be asked for nothing and in vain.
    pub(crate) fn to_client(&self, options: &Options, amazons: bool) -> Identity {
        let named = options.iter().filter(|(name, _)| SOURCES.contains(name));
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        let mut variables: BTreeMap<_, _> = named.map(owned).collect();
        if !self.own {
            for file in FILES {
                variables.entry(file.to_owned()).or_insert_with(|| NO_FILE.to_owned());
            }
        }
        if !amazons {
            let disabled = "AWS_EC2_METADATA_DISABLED".to_owned();
            variables.entry(disabled).or_insert_with(|| "true".to_owned());
        }
        self.identity(Program {
            command: self.command.clone(),
            inherits: false,
            variables,
            without: Vec::new(),
        })
    }

    /// The identity of a profile as this process finds it.
    pub(crate) fn to_profile(&self, profile: &str) -> Identity {
        let profile = ("AWS_PROFILE".to_owned(), profile.to_owned());
        self.identity(Program {
            command: self.command.clone(),
            inherits: true,
            variables: BTreeMap::from([profile]),
            without: PAIR.to_vec(),
        })
    }

    /// Asks for all credentials again, each with its next use.
    pub(crate) fn renew(&self) {
        let identities = self.identities.lock().unwrap_or_else(PoisonError::into_inner);
        identities.iter().for_each(|(_, identity)| identity.renew());
    }

    /// Equal questions share an identity, so that one answer serves every bucket.
    fn identity(&self, program: Program) -> Identity {
        let mut identities = self.identities.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(identity) = identities.get(&program) {
            return identity.clone();
        }
        let identity = Identity::new(program.clone(), PACE);
        identities.put(program, identity.clone());
        identity
    }
}
