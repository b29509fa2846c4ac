//! The node daemon's configuration file.
//!
//! One rule: what is not understood is refused, with the line; a daemon never runs on half of what
//! an admin wrote.

use std::path::{Path, PathBuf};

use bytesize::ByteSize;
use forebay_error::{Doing, Error, ErrorKind, Result};
use serde::Deserialize;

/// `/etc/forebay/forebay.toml`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The process.
    #[serde(default)]
    pub daemon: Daemon,
    /// Where shards rest. This release uses exactly one.
    pub tier: Vec<Tier>,
}

/// `[daemon]`.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Daemon {
    /// Where trainers connect.
    pub socket: Option<PathBuf>,
    /// Frames and slabs together, at most.
    pub memory: Option<ByteSize>,
}

/// `[[tier]]`.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Tier {
    /// What admins call it.
    pub name: String,
    /// The cache directory.
    pub path: PathBuf,
    /// What it may hold, at most.
    pub capacity: ByteSize,
}

impl Config {
    /// Reads a file.
    ///
    /// # Errors
    /// `NotFound` if there is none, `Invalid` with line and column for anything not understood.
    pub fn read(path: &Path) -> Result<Self> {
        let at = |error: Error| error.at("config", path.display());
        let text = std::fs::read_to_string(path).doing("read the configuration").map_err(at)?;
        Self::parse(&text).map_err(at)
    }

    /// Parses a file's text.
    ///
    /// # Errors
    /// As [`Config::read`].
    pub fn parse(text: &str) -> Result<Self> {
        let config: Self = toml::from_str(text)
            .map_err(|error| Error::new(ErrorKind::Invalid, error.to_string().trim().to_owned()))?;
        match config.tier.as_slice() {
            [_] => Ok(config),
            tiers => Err(Error::new(ErrorKind::Invalid, "exactly one [[tier]] is needed")
                .at("found", tiers.len())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_file_is_read() {
        let config = Config::parse(
            "[daemon]\nsocket = '/run/f.sock'\nmemory = '16GiB'\n\
             [[tier]]\nname = 'nvme'\npath = '/mnt/nvme0'\ncapacity = '3TiB'\n",
        )
        .unwrap();
        assert_eq!(config.tier[0].capacity.as_u64(), 3 << 40);
        assert_eq!(config.daemon.memory.unwrap().as_u64(), 16 << 30);
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        let tier = "[[tier]]\nname = 'nvme'\npath = '/m'\ncapacity = '1GiB'\n";
        for (text, words) in [
            (format!("{tier}colour = 'red'\n"), ["line 5", "unknown field `colour`"]),
            (tier.replace("1GiB", "1 parsec"), ["line 4", "capacity"]),
            (format!("{tier}{tier}"), ["exactly one", "found=2"]),
            ("tier = []".to_owned(), ["exactly one", "found=0"]),
        ] {
            let error = Config::parse(&text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(words.iter().all(|word| error.to_string().contains(word)), "{error}");
        }
    }
}
