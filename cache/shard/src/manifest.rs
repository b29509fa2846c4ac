//! Which shards make up a data set, and how many samples each has.
//!
//! Its rule: two manifests are the same data set in the same order if and only if their hashes are
//! equal, so ranks compare one short text.

use std::collections::HashMap;
use std::path::Path;

use forebay_error::{Doing, Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

/// The format this version writes and reads.
const FORMAT: u32 = 1;

/// One shard of a data set.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManifestShard {
    /// The shard's URL.
    pub url: String,
    /// How many samples it has; bad ones count, because they keep their positions.
    pub samples: u64,
    /// Its length in bytes, if known; of a compressed shard, that of the tar in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// What a manifest says of some shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Samples of each.
    pub counts: Vec<u64>,
    /// Bytes of each, if all are known.
    pub bytes: Option<Vec<u64>>,
}

/// The shards of a data set in their order. Make it with [`Manifest::new`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    version: u32,
    hash: String,
    shards: Vec<ManifestShard>,
}

impl Manifest {
    /// A manifest of `shards`, in the order in which they are numbered.
    ///
    /// # Errors
    /// `Invalid` if there are none, or their samples cannot be counted in 64 bits.
    pub fn new(shards: Vec<ManifestShard>) -> Result<Self> {
        if shards.is_empty() {
            return Err(Error::new(ErrorKind::Invalid, "a manifest must name at least one shard"));
        }
        let total = shards.iter().try_fold(0u64, |sum, shard| sum.checked_add(shard.samples));
        if total.is_none() {
            return Err(Error::new(ErrorKind::Invalid, "a manifest's sample counts overflow"));
        }
        Ok(Self { version: FORMAT, hash: hash(&shards), shards })
    }

    /// The shards, in order.
    #[must_use]
    pub fn shards(&self) -> &[ManifestShard] {
        &self.shards
    }

    /// What it says of `urls`, in their order: a job may read a part of a data set.
    ///
    /// # Errors
    /// `Invalid` naming the first URL that is not listed.
    pub fn of(&self, urls: &[String]) -> Result<Listed> {
        let shards: HashMap<&str, &ManifestShard> =
            self.shards.iter().map(|shard| (shard.url.as_str(), shard)).collect();
        let found = urls.iter().map(|url| {
            shards.get(url.as_str()).copied().ok_or_else(|| {
                Error::new(ErrorKind::Invalid, "the manifest does not list a shard")
                    .at("url", url)
                    .advise("index the shards again with `forebay index`")
            })
        });
        let found: Vec<&ManifestShard> = found.collect::<Result<_>>()?;
        Ok(Listed {
            counts: found.iter().map(|shard| shard.samples).collect(),
            bytes: found.iter().map(|shard| shard.bytes).collect(),
        })
    }

    /// How many samples all shards have together.
    #[must_use]
    pub fn samples(&self) -> u64 {
        self.shards.iter().map(|shard| shard.samples).sum()
    }

    /// The identity: 64 hex digits over URLs and sample counts in order. Lengths are left out, so
    /// that a manifest learnt without them equals one written with them.
    #[must_use]
    pub fn hash(&self) -> &str {
        &self.hash
    }

    /// Reads a manifest from JSON text.
    ///
    /// # Errors
    /// `Invalid` with line and column, or if the stored hash does not fit the shards.
    pub fn from_json(text: &str) -> Result<Self> {
        let invalid = |what: String| Error::new(ErrorKind::Invalid, what);
        let read: Self = serde_json::from_str(text).map_err(|error| {
            invalid(format!("a manifest cannot be read: {error}"))
                .advise("write it with `forebay index URLS -o manifest.json`")
        })?;
        if read.version != FORMAT {
            let what =
                format!("a manifest has format {}; this version reads {FORMAT}", read.version);
            return Err(invalid(what));
        }
        let stored = read.hash;
        let manifest = Self::new(read.shards)?;
        if manifest.hash != stored {
            return Err(invalid("a manifest's hash does not fit its shards: it was edited".into())
                .advise("write it again with `forebay index URLS -o manifest.json`"));
        }
        Ok(manifest)
    }

    /// The manifest as JSON text, one shard a line's reach apart for people and diffs.
    ///
    /// # Errors
    /// None in practice: every value has a JSON form.
    pub fn to_json(&self) -> Result<String> {
        let mut text = serde_json::to_string_pretty(self).doing("write a manifest as JSON")?;
        text.push('\n');
        Ok(text)
    }

    /// Reads a manifest file.
    ///
    /// # Errors
    /// As [`Manifest::from_json`], or the file's own error; both name the path.
    pub fn read(path: &Path) -> Result<Self> {
        std::fs::read_to_string(path)
            .doing("read the manifest")
            .and_then(|text| Self::from_json(&text))
            .map_err(|error| error.at("path", path.display()))
    }

    /// Writes a manifest file.
    ///
    /// # Errors
    /// The file's own error with the path.
    pub fn write(&self, path: &Path) -> Result<()> {
        std::fs::write(path, self.to_json()?)
            .doing("write the manifest")
            .map_err(|error| error.at("path", path.display()))
    }
}

/// SHA-256 over each shard's URL length, URL and sample count.
fn hash(shards: &[ManifestShard]) -> String {
    let mut sha = Sha256::new();
    sha.update(b"forebay manifest 1");
    for shard in shards {
        sha.update((shard.url.len() as u64).to_le_bytes());
        sha.update(shard.url.as_bytes());
        sha.update(shard.samples.to_le_bytes());
    }
    sha.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shard(url: &str, samples: u64) -> ManifestShard {
        ManifestShard { url: url.into(), samples, bytes: None }
    }

    #[test]
    fn the_hash_follows_order_url_and_count_but_not_length() {
        let hash = |shards: &[ManifestShard]| Manifest::new(shards.to_vec()).unwrap().hash;
        let (a, b) = (shard("a.tar", 2), shard("b.tar", 3));
        let base = hash(&[a.clone(), b.clone()]);
        assert_eq!(base.len(), 64);
        assert_ne!(base, hash(&[b.clone(), a.clone()]));
        assert_ne!(base, hash(&[shard("a.tar", 3), b.clone()]));
        assert_eq!(base, hash(&[ManifestShard { bytes: Some(9), ..a }, b]));
    }

    #[test]
    fn it_survives_a_file_and_an_edit_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.json");
        let manifest = Manifest::new(vec![shard("a.tar", 2), shard("b.tar", 3)]).unwrap();
        manifest.write(&path).unwrap();
        assert_eq!(Manifest::read(&path).unwrap(), manifest);
        assert_eq!(manifest.samples(), 5);

        let edited = manifest.to_json().unwrap().replace("\"samples\": 3", "\"samples\": 4");
        let error = Manifest::from_json(&edited).unwrap_err();
        assert!(error.to_string().contains("edited"), "{error}");
        std::fs::write(&path, "{\n  \"version\": 1,\n  \"shard\": []\n}").unwrap();
        let error = Manifest::read(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains("line 3") && error.place("path").is_some(), "{error}");
    }

    #[test]
    fn nonsense_is_refused() {
        assert!(Manifest::new(vec![]).is_err());
        assert!(Manifest::new(vec![shard("a", u64::MAX), shard("b", 1)]).is_err());
    }
}
