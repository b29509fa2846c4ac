//! The AWS chain of credentials (environment, profile, SSO, web identity, ECS, EKS, IMDS), each
//! time in a process of its own.
//!
//! The chain reads its environment, and a daemon serves clients with different ones. So
//! the process gets the one that its asker's credentials come from, and nothing of anybody else's.
//! It may read files that hang and run the command that a profile names; it ends with the question.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use async_trait::async_trait;
use aws_config::Region;
use aws_config::default_provider::credentials::DefaultCredentialsChain;
use aws_config::environment::EnvironmentVariableRegionProvider;
use aws_config::meta::region::RegionProviderChain;
use aws_config::profile::ProfileFileRegionProvider;
use aws_credential_types::Credentials;
use aws_credential_types::provider::ProvideCredentials;
use aws_credential_types::provider::error::CredentialsError;
use forebay_error::{Doing, Error, ErrorKind, Result};
use object_store::aws::AwsCredential;
use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process_group, setrlimit};
use serde::{Deserialize, Serialize};
use tokio::io::AsyncReadExt;
use tokio::process::Child;

use super::{Lender, Lent};
use crate::helper_process::HelperProcess;

/// The longest answer: a session token has some kilobytes.
const ANSWER_MAX: u64 = 64 << 10;

/// Memory of the process, and of each command that a profile names: their answers are short, and a
/// command that prints without end must not take the machine's memory.
const DATA_MAX: u64 = 512 << 20;

/// Longer reasons are cut.
const REASON_CHARS: usize = 300;

/// Region to ask for credentials by default: Amazon's first, which knows all users.
const REGION: &str = "us-east-1";

/// Prefix of variables that carry credentials.
const SOMEBODYS: &str = "AWS_";

/// Those by which the machine itself lends credentials, to everybody on it.
const MACHINES: [&str; 2] = ["AWS_CONTAINER_", "AWS_EC2_METADATA_"];

/// Answer of the process: a key, or the reason there is none.
type Said = Result<Key, Error>;

#[derive(Serialize, Deserialize)]
struct Key {
    id: String,
    secret: String,
    token: Option<String>,
    /// Seconds since 1970.
    expiry: Option<u64>,
}

/// Asks the chain in a process.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Program {
    /// Runs [`lend`].
    pub(super) command: Vec<OsString>,
    /// True if this process's own variables count: for an administrator's rule.
    pub(super) inherits: bool,
    /// Variables on top of that.
    pub(super) variables: BTreeMap<String, String>,
    /// Variables that are not to be there.
    pub(super) without: Vec<&'static str>,
}

/// Values of variables are secrets.
impl fmt::Debug for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Program").field("command", &self.command).finish_non_exhaustive()
    }
}

impl Program {
    fn prepare(&self) -> Result<HelperProcess> {
        let mut process = HelperProcess::new(&self.command)?;
        let command = process.command.stdout(Stdio::piped());
        let lent = |name: &str| MACHINES.iter().any(|machines| name.starts_with(machines));
        // Two ways of one machine's are not mixed either.
        let chosen = self.variables.keys().any(|name| name.starts_with(MACHINES[0]));
        for (name, _) in std::env::vars_os() {
            let Some(name) = name.to_str().filter(|name| name.starts_with(SOMEBODYS)) else {
                continue;
            };
            let stays = self.inherits || (lent(name) && !chosen);
            if !stays || self.without.contains(&name) {
                command.env_remove(name);
            }
        }
        command.envs(&self.variables);
        Ok(process)
    }
}

#[async_trait]
impl Lender for Program {
    async fn lend(&self) -> Result<Lent> {
        let at = |error: Error| match self.command.first() {
            Some(program) => error.at("program", Path::new(program).display()),
            None => error,
        };
        let mut child = self.prepare()?.start().await?;
        let output = child.stdout.take().expect("stdout was piped just above");
        let mut group = Group(child);
        let mut answer = Vec::new();
        let read = output.take(ANSWER_MAX).read_to_end(&mut answer).await;
        read.doing("read credentials").map_err(at)?;
        // It is waited for, so that it does not stay as a zombie.
        group.0.wait().await.doing("wait for the program's end").map_err(at)?;
        let said: Said = postcard::from_bytes(&answer).map_err(|_| {
            let what = "the program for credentials ended without output";
            at(Error::new(ErrorKind::Unavailable, what)).advise(
                "check that the program runs (`forebay --version`), and that the \
                 `credential_process` of the profile prints one short answer",
            )
        })?;
        let Key { id, secret, token, expiry } = said?;
        let expiry = expiry.map(|secs| SystemTime::UNIX_EPOCH + Duration::from_secs(secs));
        let key = AwsCredential { key_id: id, secret_key: secret, token };
        Ok(Lent { key: Arc::new(key), expiry })
    }
}

/// A process and what it started, killed when dropped.
struct Group(Child);

impl Drop for Group {
    fn drop(&mut self) {
        let pid = self.0.id().and_then(|pid| i32::try_from(pid).ok()).and_then(Pid::from_raw);
        if let Some(pid) = pid {
            // It may have ended by itself.
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

/// Asks the chain as this process's environment has it, and writes the answer to standard output.
///
/// # Errors
/// If the answer cannot be written; that there are no credentials is an answer.
pub fn lend() -> Result<()> {
    let limit = Some(DATA_MAX);
    setrlimit(Resource::Data, Rlimit { current: limit, maximum: limit })
        .doing("limit the memory of the program for credentials")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let said: Said = runtime.doing("start a runtime")?.block_on(async {
        // Without the last, the chain asks the machine for it, which may be none of Amazon's.
        let region = RegionProviderChain::first_try(EnvironmentVariableRegionProvider::new())
            .or_else(ProfileFileRegionProvider::new())
            .or_else(Region::from_static(REGION));
        let chain = DefaultCredentialsChain::builder().region(region).build().await;
        let lent = chain.provide_credentials().await;
        lent.map(Key::from).map_err(|error| refusal(&error))
    });
    let answer = postcard::to_allocvec(&said).expect("strings and numbers always encode");
    let mut stdout = std::io::stdout();
    // Under an interpreter nothing else would: it ends without the end of a program of ours.
    stdout.write_all(&answer).and_then(|()| stdout.flush()).doing("write credentials")
}

impl From<Credentials> for Key {
    fn from(lent: Credentials) -> Self {
        let since = |expiry: SystemTime| expiry.duration_since(SystemTime::UNIX_EPOCH).ok();
        Self {
            id: lent.access_key_id().to_owned(),
            secret: lent.secret_access_key().to_owned(),
            token: lent.session_token().map(str::to_owned),
            expiry: lent.expiry().and_then(since).map(|since| since.as_secs()),
        }
    }
}

/// Returns the meaning of the chain's error. A reason about the configuration is repeated; others
/// may contain a service's answer.
fn refusal(error: &CredentialsError) -> Error {
    let asked = "set AWS_PROFILE or a key pair, or AWS_SKIP_SIGNATURE=true for a public bucket; `aws sts get-caller-identity` in the job's environment shows the identity";
    match error {
        CredentialsError::CredentialsNotLoaded(_) => {
            Error::new(ErrorKind::PermissionDenied, "no credentials are found for the store")
        }
        CredentialsError::InvalidConfiguration(_) => {
            let what = format!("invalid credentials configuration: {}", reason(error));
            Error::new(ErrorKind::Invalid, what)
        }
        CredentialsError::ProviderTimedOut(_) => {
            Error::new(ErrorKind::Unavailable, "the credential provider does not answer")
                .advise(asked)
        }
        _ => Error::new(ErrorKind::Unavailable, "the credential provider refused or failed")
            .advise(asked),
    }
}

/// The innermost cause, which says most.
fn reason(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(cause) = innermost.source() {
        innermost = cause;
    }
    innermost.to_string().chars().take(REASON_CHARS).collect()
}
