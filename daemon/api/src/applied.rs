//! Result of applying a configuration.

use std::fmt::{self, Write as _};
use std::path::PathBuf;

use bytesize::ByteSize;
use forebay_config::{Change, Told};
use forebay_store::{Effects, ShareEffect};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Result of applying a configuration, or of a dry run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Applied {
    /// The file that it was in.
    pub file: PathBuf,
    /// The daemon's own file, by which it goes after a restart.
    pub own_file: PathBuf,
    /// True for a dry run.
    pub dry_run: bool,
    /// True if the daemon now runs it.
    pub applied: bool,
    /// Changes.
    pub changes: Vec<Change>,
    /// Changes that need a restart; if there are any, nothing changed.
    pub refused: Vec<Change>,
    /// Mistakes in it; if there are any, nothing changed.
    pub mistakes: Vec<Told>,
    /// Effects on cached data.
    pub effects: Effects,
    /// The configuration in force: tiers, sources, data sets and tenants.
    pub running: Value,
}

impl Applied {
    /// Returns true if it can be applied.
    #[must_use]
    pub fn is_good(&self) -> bool {
        self.refused.is_empty() && self.mistakes.is_empty()
    }

    /// Returns the reason it was not applied, if any.
    #[must_use]
    pub fn why_not(&self) -> Option<String> {
        let count = |count: usize, one: &str| match count {
            1 => format!("1 {one}"),
            count => format!("{count} {one}s"),
        };
        match (self.mistakes.len(), self.refused.len()) {
            (0, 0) => None,
            (0, refused) => Some(format!(
                "{} only at a restart; nothing was changed",
                match refused {
                    1 => "1 of the changes takes effect".to_owned(),
                    many => format!("{many} of the changes take effect"),
                }
            )),
            (mistakes, _) => {
                let mistakes = count(mistakes, "mistake");
                Some(format!("the configuration has {mistakes}; nothing was changed"))
            }
        }
    }
}

/// As people read it.
impl fmt::Display for Applied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        for mistake in &self.mistakes {
            writeln!(text, "{}", mistake.text)?;
        }
        for change in &self.changes {
            let restart = if self.refused.contains(change) { " (only at a restart)" } else { "" };
            writeln!(text, "{change}{restart}")?;
        }
        if self.is_good() && self.changes.is_empty() {
            writeln!(text, "nothing changes")?;
        }
        let Effects { datasets, tenants, tiers } = &self.effects;
        for (noun, shares) in [("data set", datasets), ("tenant", tenants)] {
            for share in shares {
                let told = told(share);
                if !told.is_empty() {
                    writeln!(text, "{noun} {}: {}", share.name, told.join("; "))?;
                }
            }
        }
        for tier in tiers.iter().filter(|tier| tier.over_bytes > 0) {
            let (name, over) = (&tier.name, size(tier.over_bytes));
            writeln!(
                text,
                "tier {name}: {over} above its capacity move to slower tiers, or are evicted"
            )?;
        }
        let own = self.own_file.display();
        match (self.is_good(), self.dry_run) {
            (true, true) => writeln!(text, "nothing was changed: that was a dry run")?,
            (true, false) if self.file != self.own_file => writeln!(
                text,
                "applied until the daemon reads its own file again: write it to {own} to keep it"
            )?,
            (true, false) => writeln!(text, "applied")?,
            (false, _) => {}
        }
        f.write_str(text.trim_end())
    }
}

/// Describes changed limits of a data set's or a tenant's holdings.
fn told(share: &ShareEffect) -> Vec<String> {
    let mut told = Vec::new();
    match (share.before_bytes, share.after_bytes) {
        (Some(before), None) if before > 0 => {
            told.push(format!("its {} belong to others now", size(before)));
        }
        (None, Some(after)) if after > 0 => {
            told.push(format!("holds {} from the start", size(after)));
        }
        (Some(before), Some(after)) if before != after => {
            told.push(format!("holds {} instead of {}", size(after), size(before)));
        }
        _ => {}
    }
    if share.over_bytes > 0 {
        let max = size(share.max_bytes.unwrap_or(0));
        told.push(format!(
            "{} above its quota.max of {max} are evicted, unless pinned",
            size(share.over_bytes)
        ));
    }
    if share.unwanted_bytes > 0 {
        told.push(format!(
            "{} are on tiers it may not use any more: they move, or are evicted",
            size(share.unwanted_bytes)
        ));
    }
    if share.stale_bytes > 0 {
        told.push(format!(
            "{} are older than its ttl: they are fetched again",
            size(share.stale_bytes)
        ));
    }
    told
}

fn size(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}

/// A configuration as somebody sent it.
#[derive(Debug, Clone)]
pub struct Sent {
    /// Name of the file: the extension selects the language.
    pub name: String,
    /// Content of the file.
    pub bytes: Vec<u8>,
}
