//! Tokens of each sample that a job reads, known from the member index before a sample is read.
//!
//! They come from a column, or from the sizes of members in bytes. No length is guessed: a sample
//! without one is an error that names it.

use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::members::{Column, MemberIndex, Values};
use serde::Deserialize;
use sha2::{Digest, Sha256};

use crate::filter::{Choice, nearest};

/// Lengths to read.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LengthsOf {
    /// Name of the field, for errors.
    pub field: String,
    /// Place of the lengths.
    pub source: LengthSource,
    /// True if samples may lack the field: they have no tokens then.
    pub is_optional: bool,
    /// Tokens of a batch.
    pub budget: u32,
    /// Tokens at which samples are cut, if they are.
    pub max_len: Option<u32>,
    /// True if a sample of more tokens than the budget is a batch of its own; otherwise it is an
    /// error.
    pub is_alone: bool,
}

/// Place of lengths in a member index.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "lowercase", deny_unknown_fields)]
pub enum LengthSource {
    /// A column.
    Column(String),
    /// Sizes of members.
    Member {
        /// Fields, alternatives in order of preference.
        fields: Vec<String>,
        /// Bytes before the first token.
        header: u64,
        /// Bytes of a token.
        item: u64,
    },
}

/// Samples of one shard of a job.
#[derive(Debug, Clone, Copy)]
pub struct ShardSamples<'a> {
    /// URL, for errors.
    pub url: &'a str,
    /// Number in the index.
    pub number: usize,
    /// Samples that the job reads, if not all.
    pub choice: Option<&'a Arc<Choice>>,
}

impl LengthsOf {
    /// Reads the tokens of each sample of these shards that the job reads.
    ///
    /// # Errors
    /// `Invalid` for an unknown column or field, with the name that may be meant; for a sample
    /// without a length or with more tokens than the budget, with its shard and key; those of
    /// reading the index.
    pub fn read(&self, index: &MemberIndex, shards: &[ShardSamples<'_>]) -> Result<Vec<u32>> {
        let place = self.place(index).map_err(|error| error.at("members", index.name()))?;
        let mut lengths = Vec::new();
        for shard in shards {
            let all = place.of(index, shard.number)?;
            let mut take = |nth: u64| {
                // A choice names samples of its shard only.
                let length = self.checked(all[nth as usize]);
                lengths.push(length.map_err(|fault| fault.error(self, index, shard, nth))?);
                Ok(())
            };
            match shard.choice {
                Some(choice) => choice.places().try_for_each(&mut take)?,
                None => (0..all.len() as u64).try_for_each(&mut take)?,
            }
        }
        Ok(lengths)
    }

    /// Returns the length that counts, or the error about the sample.
    fn checked(&self, tokens: Option<u64>) -> std::result::Result<u32, Fault> {
        let Some(tokens) = tokens else {
            return if self.is_optional { Ok(0) } else { Err(Fault::Missing) };
        };
        let tokens = self.max_len.map_or(tokens, |most| tokens.min(u64::from(most)));
        match u32::try_from(tokens) {
            Ok(tokens) if tokens <= self.budget || self.is_alone => Ok(tokens),
            _ => Err(Fault::TooLong(tokens)),
        }
    }

    fn place(&self, index: &MemberIndex) -> Result<Place> {
        match &self.source {
            LengthSource::Column(name) => {
                let columns = index.columns();
                if let Some(column) = columns.iter().position(|column| column.name == *name) {
                    return Ok(Place::Column(column));
                }
                let error = Error::new(ErrorKind::Invalid, "there is no column of this name")
                    .at("field", &self.field)
                    .at("column", name);
                let names = columns.iter().map(|column| column.name.as_str());
                let add = "add it with `forebay index --members --columns json:NAME`, where the \
                           samples' JSON has the number of tokens";
                Err(nearest(error, name, names, "columns", add))
            }
            LengthSource::Member { fields, header, item } => {
                let find = |field: &String| index.fields().iter().position(|one| one == field);
                let found: Vec<usize> = fields.iter().filter_map(find).collect();
                if found.is_empty() {
                    let named = fields.join(";");
                    let error = Error::new(ErrorKind::Invalid, "no sample has this member")
                        .at("field", &self.field)
                        .at("source", &named);
                    let names = index.fields().iter().map(String::as_str);
                    let advice = "name a member of the samples in the field's source";
                    return Err(nearest(error, &named, names, "fields", advice));
                }
                Ok(Place::Member { fields: found, header: *header, item: (*item).max(1) })
            }
        }
    }
}

/// Returns 64 hex digits over lengths: equal lengths make equal bins.
#[must_use]
pub fn hash(lengths: &[u32]) -> String {
    let mut sha = Sha256::new();
    sha.update(b"forebay lengths 1");
    lengths.iter().for_each(|length| sha.update(length.to_le_bytes()));
    sha.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Reason for which a sample has no length.
enum Fault {
    Missing,
    TooLong(u64),
}

impl Fault {
    fn error(self, of: &LengthsOf, index: &MemberIndex, at: &ShardSamples<'_>, nth: u64) -> Error {
        let (block, row) = (nth / BLOCK, (nth % BLOCK) as usize);
        let error = match self {
            Self::Missing => {
                let advice = match &of.source {
                    LengthSource::Column(name) => format!(
                        "leave such samples out by where=\"{name} is not null\", or index the \
                         data set again once they have it"
                    ),
                    LengthSource::Member { .. } => "make the field optional=True, or repair the \
                                                    samples; sizes must be those of whole tokens"
                        .to_owned(),
                };
                Error::new(ErrorKind::Invalid, "a sample has no length").advise(advice)
            }
            Self::TooLong(tokens) => {
                Error::new(ErrorKind::Invalid, "a sample has more tokens than a batch may have")
                    .at("tokens", tokens)
                    .at("budget", of.budget)
                    .advise("raise budget=, or choose too_long=\"truncate\" or too_long=\"alone\"")
            }
        };
        let error = error.at("field", &of.field).at("url", at.url);
        let error = match &of.source {
            LengthSource::Column(name) => error.at("column", name),
            LengthSource::Member { .. } => error,
        };
        match index
            .samples(at.number, block)
            .map(|index| index.samples.get(row).map(|s| s.key.clone()))
        {
            Ok(Some(key)) => error.at("key", key),
            _ => error.at("sample", nth),
        }
    }
}

/// Samples of a block.
const BLOCK: u64 = forebay_shard::members::BLOCK_SAMPLES as u64;

/// Place of the lengths, looked up in an index.
enum Place {
    Column(usize),
    Member { fields: Vec<usize>, header: u64, item: u64 },
}

impl Place {
    /// Returns the tokens of each sample of a shard.
    fn of(&self, index: &MemberIndex, shard: usize) -> Result<Vec<Option<u64>>> {
        let info = &index.shards()[shard];
        let mut all = Vec::new();
        match self {
            Self::Column(column) => {
                for block in index.column(shard, *column)? {
                    all.extend(of_column(&block?));
                }
            }
            Self::Member { fields, header, item } => {
                for block in 0..info.blocks() {
                    let block = index.samples(shard, block)?;
                    all.extend(block.samples.iter().map(|sample| {
                        let members = sample.members.start as usize..sample.members.end as usize;
                        let own = &block.members[members];
                        let bytes = fields.iter().find_map(|field| {
                            own.iter().find(|member| member.field as usize == *field)
                        });
                        let bytes = bytes?.len.checked_sub(*header)?;
                        bytes.is_multiple_of(*item).then(|| bytes / item)
                    }));
                }
            }
        }
        // A damaged index must not shift the lengths of later samples.
        match all.len() as u64 == info.samples {
            true => Ok(all),
            false => Err(Error::new(ErrorKind::Corrupt, "the member index has too few values")
                .at("path", index.name())
                .at("shard", shard)
                .advise("write it again with `forebay index --members`")),
        }
    }
}

/// Returns the whole numbers of a block, None for samples without one.
fn of_column(column: &Column) -> Vec<Option<u64>> {
    let mut values: Box<dyn Iterator<Item = Option<u64>>> = match &column.values {
        Values::Ints(values) => Box::new(values.iter().map(|value| u64::try_from(*value).ok())),
        // A length such as 3.5, or a text, is none.
        Values::Floats(values) => Box::new(values.iter().map(|value| {
            let is_whole = value.fract() == 0.0 && (0.0..=f64::from(u32::MAX)).contains(value);
            is_whole.then_some(*value as u64)
        })),
        Values::Texts(_) | Values::Empty => Box::new(std::iter::repeat(None)),
    };
    column.present.iter().map(|is_there| if *is_there { values.next()? } else { None }).collect()
}

#[cfg(test)]
mod tests;
