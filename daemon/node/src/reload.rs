//! A configuration that changes while the daemon runs.
//!
//! All of it or nothing. The daemon's own file is what it goes by after a restart;
//! another file can be applied beside it, and then the two differ until somebody makes them agree,
//! which is told wherever the daemon is looked at ([`drift`]).

mod drift;
mod state;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use forebay_api::applied::{Applied, Sent};
use forebay_client::NODE_SOCKET;
use forebay_config as config;
use forebay_config::embedded;
use forebay_config::settings::NodeTier;
use forebay_config::{Change, Config, Mistake, Prices, Told};
use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_store::{Effects, StoreRules, TierLimits, rules_digest};

use crate::Node;
use crate::audit::{Entry, Outcome};
pub use state::Reload;
use state::Ruling;

/// A local file is read, and its groups looked up, within this time, or something hangs.
const READING: Duration = Duration::from_secs(10);

impl Node {
    /// From now on the node goes by this file, which said `config` when it was read.
    pub fn govern(&self, file: &Path, config: Config) {
        // By the name that it was given: what an editor puts in its place counts.
        let file = std::path::absolute(file).unwrap_or_else(|_| file.to_owned());
        let (config, since) = (Arc::new(config), SystemTime::now());
        *self.reload.ruling() = Some(Ruling { file, config, from: None, since });
    }

    /// Returns the prices of the configuration in force.
    pub fn prices(&self) -> Prices {
        let ruling = self.reload.ruling();
        ruling.as_ref().map(|ruling| ruling.config.prices.clone()).unwrap_or_default()
    }

    /// Goes by what was `sent` from now on, or by what the daemon's own file says now. `dry`: only
    /// says what would change.
    ///
    /// All its mistakes, and the changes that need a restart, are reported, and
    /// then nothing changes.
    ///
    /// # Errors
    /// `Invalid` if the daemon has no configuration file, or if what the rules promise cannot all
    /// be kept; what keeps the file from being read.
    pub async fn apply(&self, sent: Option<Sent>, dry: bool) -> Result<Applied> {
        let _alone = self.reload.applying.lock().await;
        let ruling = self.reload.ruling().clone().ok_or_else(without_file)?;
        let from = sent.as_ref().map(|sent| sent.name.clone());
        let (own, named) = (ruling.file.clone(), PathBuf::from(from.clone().unwrap_or_default()));
        let told_of = if from.is_some() { named } else { own.clone() };
        let read = reading(move || match sent {
            Some(Sent { name, bytes }) => Ok(Config::judge(Path::new(&name), bytes)),
            None => Config::inspect(&own),
        });
        let new = match read.await? {
            Ok(new) => new,
            Err(mistakes) => {
                let told = |mistake: &Mistake| Told::of(mistake, &told_of);
                return Ok(Applied {
                    mistakes: mistakes.iter().map(told).collect(),
                    ..unapplied(&ruling, told_of, dry)
                });
            }
        };
        let changes = config::diff(&ruling.config, &new, NODE_SOCKET, embedded::memory() as u64);
        let refused = changes.iter().filter(|change| change.needs_restart(&ruling.config));
        let refused: Vec<Change> = refused.cloned().collect();
        let mut applied = Applied { changes, ..unapplied(&ruling, told_of, dry) };
        if !refused.is_empty() {
            return Ok(Applied { refused, ..applied });
        }
        applied.effects = self.enforce(&new, dry).await?;
        if !dry {
            for change in &applied.changes {
                tracing::info!(%change, "the configuration changed");
            }
            let (config, since) = (Arc::new(new), SystemTime::now());
            *self.reload.ruling() = Some(Ruling { config, from, since, ..ruling });
            applied.applied = true;
        }
        Ok(applied)
    }

    /// Notes in the audit log what a signal brought.
    pub fn note_applied(&self, applied: &Result<Applied>) {
        audited(applied).into_iter().for_each(|entry| self.audit.note(entry));
    }

    async fn enforce(&self, config: &Config, dry: bool) -> Result<Effects> {
        let (tiers, tenants, access) = (config.tiers()?, config.tenants()?, config.access()?);
        let datasets = config.datasets()?;
        let rules = StoreRules {
            datasets: datasets.clone(),
            tenants: tenants.iter().map(|tenant| tenant.rule.clone()).collect(),
            checkpoints: config.checkpoints()?,
            tiers: tiers.into_iter().map(limits).collect(),
            sources: config.sources()?,
        };
        let digest = rules_digest(&datasets, &rules.sources);
        let effects = self.store.reconfigure(rules, dry).await?;
        if !dry {
            if let Some(cluster) = &self.cluster {
                cluster.set_rules(digest);
            }
            self.access.replace(tenants, &datasets, access);
        }
        Ok(effects)
    }
}

/// The answer before anything was looked at.
fn unapplied(ruling: &Ruling, file: PathBuf, dry_run: bool) -> Applied {
    let running = config::document(&ruling.config, NODE_SOCKET, embedded::memory() as u64);
    Applied {
        file,
        own_file: ruling.file.clone(),
        dry_run,
        applied: false,
        changes: Vec::new(),
        refused: Vec::new(),
        mistakes: Vec::new(),
        effects: Effects::default(),
        running: config::policy(&running),
    }
}

/// Returns the audit entries: each change, or the reason there is none.
pub fn audited(applied: &Result<Applied>) -> Vec<Entry> {
    let entry = |outcome| Entry::new("policy", outcome);
    match applied {
        Err(_) => vec![Entry::of("policy", applied)],
        Ok(applied) => match applied.why_not() {
            Some(why) => vec![entry(Outcome::Failed).what(&why)],
            None => {
                let changes = applied.changes.iter();
                changes.map(|change| entry(Outcome::Done).what(&change.to_string())).collect()
            }
        },
    }
}

fn limits(tier: NodeTier) -> TierLimits {
    let NodeTier { name, capacity, keep_free, watermarks, .. } = tier;
    TierLimits { name, capacity, keep_free, watermarks }
}

/// Reads a file beside those who serve.
async fn reading<T: Send + 'static>(
    read: impl FnOnce() -> Result<T> + Send + 'static,
) -> Result<T> {
    let read = tokio::task::spawn_blocking(read);
    let late = |_| {
        let what =
            "reading the configuration timed out: its file system or the group database hangs";
        Error::new(ErrorKind::Unavailable, what)
    };
    let read = tokio::time::timeout(READING, read).await.map_err(late)?;
    read.map_err(std::io::Error::other).doing("read the configuration")?
}

fn without_file() -> Error {
    let what = "this daemon has no configuration file: it is an embedded one";
    Error::new(ErrorKind::Invalid, what)
        .advise("name a node daemon: --daemon unix:/run/forebay/forebayd.sock")
}
