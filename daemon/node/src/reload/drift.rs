//! Detects a difference between the configuration in force and the file.
//!
//! The comparison is of meaning. A file that was touched, or written differently, does not differ.

use std::path::Path;
use std::time::SystemTime;

use forebay_api::configuration::{Configuration, Drift};
use forebay_client::NODE_SOCKET;
use forebay_config as config;
use forebay_config::embedded;
use forebay_config::{Config, Told};
use forebay_error::{Doing, Result};

use super::reading;
use super::state::{Print, Ruling};
use crate::Node;

impl Node {
    /// Returns the configuration in force, and its difference from the file; none if the node has
    /// no file.
    pub async fn configuration(&self) -> Option<Configuration> {
        let ruling = self.reload.ruling().clone()?;
        Some(Configuration {
            file: ruling.file.clone(),
            applied_from: ruling.from.clone(),
            since: told(ruling.since),
            drift: self.drift(&ruling).await,
        })
    }

    async fn drift(&self, ruling: &Ruling) -> Option<Drift> {
        let look = |file: &Path| std::fs::metadata(file).doing("stat the configuration");
        let file = ruling.file.clone();
        let print = match reading(move || look(&file)).await {
            Ok(metadata) => Print::of(&metadata),
            Err(error) => return Some(Drift::unreadable(error.to_string())),
        };
        if let Some(known) = self.reload.drift.get(print, &ruling.config) {
            return known;
        }
        let file = ruling.file.clone();
        let read: Result<_> = reading(move || Config::inspect(&file)).await;
        let since = Some(told(print.changed().max(ruling.since)));
        let drift = match read {
            Ok(Ok(config)) => {
                let memory = embedded::memory() as u64;
                let changes = config::diff(&ruling.config, &config, NODE_SOCKET, memory);
                (!changes.is_empty()).then(|| Drift { since, changes, ..Drift::default() })
            }
            Ok(Err(mistakes)) => {
                let mistakes = mistakes.iter().map(|mistake| Told::of(mistake, &ruling.file));
                Some(Drift { since, mistakes: mistakes.collect(), ..Drift::default() })
            }
            // It may be readable a moment later, without being another.
            Err(error) => return Some(Drift::unreadable(error.to_string())),
        };
        self.reload.drift.put(print, &ruling.config, &drift);
        drift
    }
}

fn told(time: SystemTime) -> String {
    humantime::format_rfc3339_seconds(time).to_string()
}
