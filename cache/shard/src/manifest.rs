//! Shards of a data set, and the number of samples in each.
//!
//! Two manifests are the same data set in the same order if and only if their hashes are equal, so
//! ranks compare one short text.

use std::cell::LazyCell;
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
    /// Number of samples; bad ones count, because they keep their positions.
    pub samples: u64,
    /// Length in bytes, if known; for a compressed shard, that of the tar in it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bytes: Option<u64>,
}

/// A manifest's entries of some shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Listed {
    /// Number of each in [`Manifest::shards`].
    pub numbers: Vec<usize>,
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

    /// Returns the entries of `urls`, in their order: a job may read a part of a data set.
    ///
    /// A data set may have moved as a whole, as from the folder where it was packed to a bucket: a
    /// URL that is not listed is the shard with the same name, that is the part behind the folder
    /// all listed ones share. The reader verifies the number of samples, as for any shard.
    pub fn of(&self, urls: &[String]) -> Result<Listed> {
        let by = |start: usize| -> HashMap<&str, usize> {
            let shards = self.shards.iter().enumerate();
            shards.map(|(number, shard)| (&shard.url[start..], number)).collect()
        };
        // Most data sets did not move: their names are not looked at.
        let (listed, names) = (by(0), LazyCell::new(|| by(self.folder().len())));
        let mut wanted_as: HashMap<&str, &str> = HashMap::new();
        let mut numbers = Vec::with_capacity(urls.len());
        for url in urls {
            let by_name = || {
                let mut ends = url.match_indices('/').map(|(at, _)| &url[at + 1..]);
                ends.find_map(|name| names.get(name))
            };
            let number = listed.get(url.as_str()).or_else(by_name).copied().ok_or_else(|| {
                Error::new(ErrorKind::Invalid, "the manifest does not list a shard")
                    .at("url", url)
                    .advise("index the shards again with `forebay index`")
            })?;
            let other = *wanted_as.entry(&self.shards[number].url).or_insert(url);
            if other != url {
                return Err(Error::new(ErrorKind::Invalid, "a manifest lists one of two shards")
                    .at("url", url)
                    .at("other", other)
                    .advise("index all of them together with `forebay index`"));
            }
            numbers.push(number);
        }
        let found = || numbers.iter().map(|number| &self.shards[*number]);
        Ok(Listed {
            counts: found().map(|shard| shard.samples).collect(),
            bytes: found().map(|shard| shard.bytes).collect(),
            numbers,
        })
    }

    /// The longest beginning of all URLs that ends with a slash.
    fn folder(&self) -> &str {
        let folder_of = |text: &str| text.rfind('/').map_or(0, |at| at + 1);
        let first = self.shards[0].url.as_str();
        let mut end = folder_of(first);
        for shard in &self.shards[1..] {
            while !shard.url.starts_with(&first[..end]) {
                end = folder_of(first[..end].trim_end_matches('/'));
            }
        }
        &first[..end]
    }

    /// Returns the number of samples in all shards.
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
            return Err(invalid(
                "a manifest's hash does not match its shards: it was edited".into(),
            )
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
    fn hash_depends_on_order_and_counts_not_on_lengths() {
        let hash = |shards: &[ManifestShard]| Manifest::new(shards.to_vec()).unwrap().hash;
        let (a, b) = (shard("a.tar", 2), shard("b.tar", 3));
        let base = hash(&[a.clone(), b.clone()]);
        assert_eq!(base.len(), 64);
        assert_ne!(base, hash(&[b.clone(), a.clone()]));
        assert_ne!(base, hash(&[shard("a.tar", 3), b.clone()]));
        assert_eq!(base, hash(&[ManifestShard { bytes: Some(9), ..a }, b]));
    }

    #[test]
    fn manifest_survives_a_file_and_edits_are_detected() {
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
    fn moved_data_set_is_matched_by_file_names() {
        let here = ["/data/a/x.tar", "/data/b/x.tar", "/data/a/y.tar"].map(str::to_owned);
        let (x, other_x, y) = (shard(&here[0], 1), shard(&here[1], 2), shard(&here[2], 3));
        let manifest = Manifest::new(vec![x, other_x, y]).unwrap();
        let counts = |urls: &[&str]| {
            let urls: Vec<String> = urls.iter().copied().map(str::to_owned).collect();
            manifest.of(&urls).map(|listed| listed.counts)
        };
        assert_eq!(counts(&["/data/b/x.tar"]).unwrap(), [2]);
        let bucket = ["s3://bucket/new/a/y.tar", "s3://bucket/new/b/x.tar"];
        assert_eq!(counts(&bucket).unwrap(), [3, 2]);
        assert_eq!(counts(&["s3://b/a/x.tar", "s3://b/a/x.tar"]).unwrap(), [1, 1], "a repeat");
        for urls in [
            &["s3://bucket/x.tar"][..],
            &["s3://bucket/aa/x.tar"],
            // Two data sets whose shards have the same names.
            &["s3://one/a/x.tar", "s3://two/a/x.tar"],
            &["/data/a/x.tar", "s3://two/a/x.tar"],
        ] {
            assert_eq!(counts(urls).unwrap_err().kind(), ErrorKind::Invalid, "{urls:?}");
        }
        let bare = Manifest::new(vec![shard("x.tar", 1)]).unwrap();
        assert_eq!(bare.of(&["s3://b/x.tar".to_owned()]).unwrap().counts, [1]);
    }

    #[test]
    fn empty_and_overflowing_manifests_are_rejected() {
        assert!(Manifest::new(vec![]).is_err());
        assert!(Manifest::new(vec![shard("a", u64::MAX), shard("b", 1)]).is_err());
    }
}
