//! `forebay config check`.
//!
//! A file that passes is readable by a daemon of this machine; for any other, all mistakes are
//! listed.

use std::path::PathBuf;

use forebay_config::{Config, Told};
use forebay_error::{Error, ErrorKind};
use serde::Serialize;

use crate::daemon::CONFIG;
use crate::{Done, Output, print, print_json};

/// Tell whether a configuration is right, or everything that is wrong with it.
///
/// Mistakes name line and column, and what may have been meant. Groups are looked up and
/// certificates opened on this machine, as its daemon would.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The configuration file; `.yaml`, `.yml` and `.json` are read as such, all else as TOML.
    #[arg(value_name = "FILE", default_value = CONFIG)]
    file: PathBuf,
    #[command(flatten)]
    output: Output,
}

/// Result for a file.
#[derive(Serialize)]
struct Document<'a> {
    file: &'a PathBuf,
    good: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    has: Option<Counts>,
    mistakes: Vec<Told>,
}

/// Number of entries by section.
#[derive(Serialize)]
struct Counts {
    tiers: usize,
    sources: usize,
    datasets: usize,
    tenants: usize,
}

impl Counts {
    fn of(config: &Config) -> Self {
        Self {
            tiers: config.tier.len(),
            sources: config.source.len(),
            datasets: config.dataset.len(),
            tenants: config.tenant.len(),
        }
    }

    fn text(&self) -> String {
        let say = |count: usize, one: &str| match count {
            1 => format!("1 {one}"),
            count => format!("{count} {one}s"),
        };
        let Self { tiers, sources, datasets, tenants } = *self;
        let said = [
            say(tiers, "tier"),
            say(sources, "source"),
            say(datasets, "data set"),
            say(tenants, "tenant"),
        ];
        said.join(", ")
    }
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let file = &arguments.file;
    let (has, mistakes) = match Config::inspect(file)? {
        Ok(config) => (Some(Counts::of(&config)), Vec::new()),
        Err(mistakes) => (None, mistakes),
    };
    let mistakes: Vec<_> = mistakes.iter().map(|mistake| Told::of(mistake, file)).collect();
    let count = mistakes.len();
    if arguments.output.json {
        print_json(&Document { file, good: has.is_some(), has, mistakes })?;
    } else if let Some(has) = has {
        print(&format!("{}: good: {}", file.display(), has.text()))?;
    } else {
        let lines: Vec<_> = mistakes.into_iter().map(|told| told.text).collect();
        print(&lines.join("\n"))?;
    }
    let what = match count {
        0 => return Ok(()),
        1 => "the configuration has a mistake".to_owned(),
        many => format!("the configuration has {many} mistakes"),
    };
    Err(Error::new(ErrorKind::Invalid, what).at("config", file.display()).into())
}
