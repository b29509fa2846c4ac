//! Samples of shards that a filter chose, as the plan and the wire have them.

use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::message::Chosen;
use roaring::RoaringBitmap;
use sha2::{Digest, Sha256};

/// Samples of a shard that pass a filter.
#[derive(Debug, Clone, PartialEq)]
pub struct Choice {
    /// Samples of the whole shard.
    pub samples: u64,
    /// Version of the object that was indexed, if known.
    pub version: Option<String>,
    /// Digest of the shard's samples, if known: see [`forebay_shard::members::Digest`].
    pub digest: Option<u32>,
    /// Places of the samples that pass.
    pub(super) passing: RoaringBitmap,
}

impl Choice {
    /// Returns the choice of all samples of a shard that no filter applies to.
    ///
    /// # Errors
    /// `Invalid` for more samples than a choice can name.
    pub fn all(samples: u64) -> Result<Self> {
        let end = u32::try_from(samples).map_err(|_| {
            Error::new(ErrorKind::Invalid, "a shard has too many samples to be filtered")
                .at("samples", samples)
        })?;
        let mut passing = RoaringBitmap::new();
        passing.insert_range(0..end);
        Ok(Self { samples, version: None, digest: None, passing })
    }

    /// Returns the number of samples that pass.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.passing.len()
    }

    /// Returns the place in the shard of the sample that is number `nth` of those that pass.
    #[must_use]
    pub fn place(&self, nth: u64) -> Option<u64> {
        let nth = u32::try_from(nth).ok()?;
        self.passing.select(nth).map(u64::from)
    }

    /// Returns the places in the shard of all samples that pass, ascending.
    pub fn places(&self) -> impl Iterator<Item = u64> + '_ {
        self.passing.iter().map(u64::from)
    }

    /// Returns its form on the wire. `is_moved` leaves the version out: the shard has another URL
    /// than the one that was indexed.
    #[must_use]
    pub fn to_wire(&self, is_moved: bool) -> Chosen {
        let mut passing = Vec::with_capacity(self.passing.serialized_size());
        self.passing.serialize_into(&mut passing).expect("memory takes every byte");
        let version = self.version.clone().filter(|_| !is_moved);
        Chosen { samples: self.samples, version, digest: self.digest, passing }
    }

    fn from_wire(chosen: &Chosen) -> Result<Self> {
        let invalid = |what: &str| Error::new(ErrorKind::Invalid, what);
        let Chosen { samples, version, digest, passing } = chosen;
        let mut rest = passing.as_slice();
        let read = RoaringBitmap::deserialize_from(&mut rest);
        let passing =
            read.map_err(|error| invalid(&format!("a choice cannot be read: {error}")))?;
        if !rest.is_empty() || passing.max().is_some_and(|last| u64::from(last) >= *samples) {
            return Err(invalid("a choice names samples that its shard does not have"));
        }
        Ok(Self { samples: *samples, version: version.clone(), digest: *digest, passing })
    }
}

/// Choices of all shards of a job.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Choices(Vec<Arc<Choice>>);

impl Choices {
    /// Choices of the shards of a job, in the order of its list.
    #[must_use]
    pub fn new(choices: Vec<Arc<Choice>>) -> Self {
        Self(choices)
    }

    /// Reads choices of a job whose shards have `counts` samples that pass.
    ///
    /// # Errors
    /// `Invalid` for choices that cannot be read, or are those of another job.
    pub fn from_wire(chosen: &[Chosen], counts: Option<&[u64]>) -> Result<Self> {
        let choices = chosen.iter().map(|one| Choice::from_wire(one).map(Arc::new));
        let choices = Self(choices.collect::<Result<_>>()?);
        match counts == Some(&choices.counts()) {
            true => Ok(choices),
            false => Err(Error::new(ErrorKind::Invalid, "the choices belong to another job")),
        }
    }

    /// Returns the choice of a shard.
    #[must_use]
    pub fn of(&self, shard: u32) -> Option<&Choice> {
        self.0.get(shard as usize).map(|choice| &**choice)
    }

    /// Returns the choices of all shards.
    #[must_use]
    pub fn all(&self) -> &[Arc<Choice>] {
        &self.0
    }

    /// Returns the number of samples of each shard that pass.
    #[must_use]
    pub fn counts(&self) -> Vec<u64> {
        self.0.iter().map(|choice| choice.count()).collect()
    }

    /// Returns 64 hex digits over the samples that pass: equal choices have the same order.
    #[must_use]
    pub fn hash(&self) -> String {
        let mut sha = Sha256::new();
        sha.update(b"forebay choice 1");
        for choice in &self.0 {
            sha.update(choice.count().to_le_bytes());
            choice.passing.iter().for_each(|place| sha.update(place.to_le_bytes()));
        }
        sha.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}
