//! Filters: the samples of a data set that an expression over columns chooses.
//!
//! ```text
//!   text ──parse──▶ conditions ──bind──▶ Filter ──evaluate──▶ Choice of each shard ──▶ the plan
//! ```
//! A filter is evaluated once, before a job opens, on the columns of a member index. The order of
//! a filtered job is that of a data set that has only the chosen samples: sample counts are those
//! of the choices, and a choice gives the place in the shard of the n-th sample that passes.

mod bind;
mod choice;
mod condition;
mod parse;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::members::MemberIndex;
use roaring::RoaringBitmap;

use bind::Bound;
pub(crate) use bind::nearest;
pub use choice::{Choice, Choices};

/// Longest filter in bytes: a list of some thousand labels.
pub const TEXT_MAX: usize = 64 << 10;

/// Deepest nesting of parentheses: the parser calls itself for each.
const NESTING_MAX: usize = 64;

/// A filter over the columns of one member index. Samples pass it if they pass all its parts.
#[derive(Debug)]
pub struct Filter(Vec<Bound>);

impl Filter {
    /// Reads filters and looks their columns up in `index`.
    ///
    /// # Errors
    /// `Invalid` with the position of what cannot be read, of an unknown column with the name that
    /// may be meant, and of a value that its column cannot have.
    pub fn new(texts: &[String], index: &MemberIndex) -> Result<Self> {
        let bound = texts.iter().map(|text| {
            let condition = parse::parse(text)?;
            Bound::new(text, condition, index.columns())
                .map_err(|error| error.at("members", index.name()))
        });
        bound.collect::<Result<_>>().map(Self)
    }

    /// Chooses samples of these shards of the index, in their order.
    ///
    /// # Errors
    /// Those of reading the index; `Invalid` for a shard of more samples than a choice can name.
    pub fn choose(&self, index: &MemberIndex, shards: &[usize]) -> Result<Vec<Arc<Choice>>> {
        let mut chosen: HashMap<usize, Arc<Choice>> = HashMap::new();
        let mut all = Vec::with_capacity(shards.len());
        for &shard in shards {
            all.push(match chosen.entry(shard) {
                Entry::Occupied(known) => known.get().clone(),
                Entry::Vacant(place) => {
                    place.insert(Arc::new(self.choose_of(index, shard)?)).clone()
                }
            });
        }
        Ok(all)
    }

    fn choose_of(&self, index: &MemberIndex, shard: usize) -> Result<Choice> {
        let info = &index.shards()[shard];
        if u32::try_from(info.samples).is_err() {
            return Err(Error::new(
                ErrorKind::Invalid,
                "a shard has too many samples to be filtered",
            )
            .at("shard", shard)
            .at("samples", info.samples));
        }
        let columns: HashSet<usize> = self.0.iter().flat_map(Bound::columns).collect();
        let mut readers = Vec::with_capacity(columns.len());
        for column in columns {
            readers.push((column, index.column(shard, column)?));
        }
        let mut passing = RoaringBitmap::new();
        let mut first = 0_u32;
        for block in 0..info.blocks() {
            let samples = info.samples_of(block);
            let mut columns = HashMap::with_capacity(readers.len());
            for (number, reader) in &mut readers {
                let column = reader.next().expect("a column has as many blocks as its shard")?;
                columns.insert(*number, column);
            }
            let mut passes = vec![true; samples];
            for bound in &self.0 {
                let these = bound.passes(&columns, samples);
                passes.iter_mut().zip(these).for_each(|(all, this)| *all &= this);
            }
            let places = (first..).zip(passes).filter(|(_, passes)| *passes);
            // They ascend.
            passing.extend(places.map(|(place, _)| place));
            first += samples as u32;
        }
        passing.optimize();
        Ok(Choice {
            samples: info.samples,
            version: (!info.version.is_empty()).then(|| info.version.to_string()),
            digest: Some(info.digest),
            passing,
        })
    }
}

#[cfg(test)]
mod tests;
