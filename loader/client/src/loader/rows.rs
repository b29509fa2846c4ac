//! From a raw batch to rows: what decodes becomes a row, what does not becomes an error.

use std::cell::RefCell;
use std::ops::{Deref, Range};
use std::sync::Arc;

use forebay_decode::{BadSample, Column, Decoded, Decoder, Output, Record, Routes};
use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::clock::now_ns;
use forebay_wire::message::{self, IN_SLOT, Member, Sample, SlowSample};
use forebay_wire::slab::Slab;

use super::Work;
use super::lending::{Lending, Loan};
use super::slowest;
use crate::lease::Lease;

/// A batch of decoded samples.
#[derive(Debug)]
pub struct Batch {
    /// Number in the epoch.
    pub index: u64,
    /// The samples' keys, one per row.
    pub keys: Vec<String>,
    /// The samples' shards, one per row.
    pub urls: Vec<u32>,
    /// The samples' places in the epoch's global sequence, one per row.
    pub positions: Vec<u64>,
    /// Start of the samples in their shards, in bytes, one per row; none if the daemon's release
    /// does not report it.
    pub offsets: Vec<u64>,
    /// False for rows that are padding.
    pub valid: Vec<bool>,
    /// The fields, each with one row per sample.
    pub columns: Vec<(String, Rows)>,
    /// Samples and shards of this batch that could not be used.
    pub errors: Vec<Error>,
    /// Payload bytes read from a tier.
    pub tier_bytes: u64,
    /// Payload bytes copied from a shard still arriving.
    pub origin_bytes: u64,
    /// Decoder of its images, and the reason.
    pub routes: Routes,
    /// Samples that took longest to decode; a few.
    pub slowest: Vec<SlowSample>,
    /// Extent of the batch in its slot, if known.
    extent: Option<Range<u64>>,
}

/// The rows of one field.
#[derive(Debug)]
pub enum Rows {
    /// Decoded rows; `present` tells for an optional field which rows have it.
    Decoded {
        /// The rows.
        column: Column,
        /// Rows that have the field, if it is optional.
        present: Option<Vec<bool>>,
    },
    /// Bytes to be copied out, or `None` where the sample lacks the field.
    Bytes(Vec<Option<View>>),
    /// Bytes to be handed out where they lie.
    Views(Vec<Option<View>>),
}

/// Bytes of one field of one sample, kept for as long as anybody looks at them.
#[derive(Debug, Clone)]
pub struct View {
    memory: Arc<Memory>,
    range: Range<usize>,
}

#[derive(Debug)]
enum Memory {
    /// Memory of the daemon; `loan` once the consumer has it.
    Mapped { map: Arc<Slab>, lease: Arc<Lease>, _loan: Option<Arc<Loan>> },
    /// A copy of the bytes of all views of one batch.
    Private(Vec<u8>),
}

/// Extent of a batch's views in one piece of memory, which it keeps. Only the views' own bytes are
/// theirs; those between them may belong to others.
#[derive(Debug, Clone)]
pub struct Extent {
    memory: Arc<Memory>,
    range: Range<usize>,
}

impl Extent {
    /// Returns the extents of all views of one batch: one for each memory that has some.
    pub fn of<'a>(views: impl Iterator<Item = &'a View>) -> Vec<Self> {
        let mut extents: Vec<Self> = Vec::new();
        for View { memory, range } in views {
            match extents.iter_mut().find(|extent| Arc::ptr_eq(&extent.memory, memory)) {
                Some(extent) => {
                    extent.range.start = extent.range.start.min(range.start);
                    extent.range.end = extent.range.end.max(range.end);
                }
                None => extents.push(Self { memory: memory.clone(), range: range.clone() }),
            }
        }
        extents
    }

    /// Returns the range of a view within it; none if the view lies in other memory.
    #[must_use]
    pub fn place(&self, view: &View) -> Option<Range<usize>> {
        let base = self.range.start;
        let is_here = Arc::ptr_eq(&self.memory, &view.memory);
        is_here.then(|| view.range.start - base..view.range.end - base)
    }

    /// Returns the address of its first byte.
    #[must_use]
    pub fn address(&self) -> usize {
        let start = match &*self.memory {
            Memory::Private(bytes) => bytes.as_ptr() as usize,
            Memory::Mapped { map, .. } => map.addresses().start,
        };
        start + self.range.start
    }

    /// Length in bytes.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "nobody asks")]
    pub fn len(&self) -> usize {
        self.range.len()
    }
}

/// Owners of a batch's views, one for each map.
struct Owners {
    lease: Arc<Lease>,
    loan: Option<Arc<Loan>>,
    made: Vec<(Arc<Slab>, Arc<Memory>)>,
}

impl Owners {
    /// Returns the owner of views into a map.
    fn of(&mut self, map: &Arc<Slab>) -> Arc<Memory> {
        if let Some((_, memory)) = self.made.iter().find(|(made, _)| Arc::ptr_eq(made, map)) {
            return memory.clone();
        }
        let (lease, _loan) = (self.lease.clone(), self.loan.clone());
        let memory = Arc::new(Memory::Mapped { map: map.clone(), lease, _loan });
        self.made.push((map.clone(), memory.clone()));
        memory
    }
}

impl Deref for View {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &*self.memory {
            Memory::Private(bytes) => &bytes[self.range.clone()],
            Memory::Mapped { map, .. } => {
                let (offset, len) = (self.range.start as u64, self.range.len() as u64);
                map.get(offset, len).expect("checked when the view was made")
            }
        }
    }
}

impl Batch {
    /// Makes the views the consumer's own: the slot while that leaves the daemon room to go on,
    /// else a copy, so that a consumer who keeps every batch never waits for itself.
    pub(super) fn hand_out(&mut self, lending: &Arc<Lending>) {
        let views = self.columns.iter_mut().filter_map(|(_, rows)| match rows {
            Rows::Views(views) => Some(views.iter_mut().flatten()),
            _ => None,
        });
        let views: Vec<&mut View> = views.flatten().collect();
        let Some(lease) = views.first().and_then(|view| match &*view.memory {
            Memory::Mapped { lease, .. } => Some(lease.clone()),
            Memory::Private(_) => None,
        }) else {
            return;
        };
        if let Some(loan) = lending.lend(&lease, self.extent.clone()) {
            let mut owners = Owners { lease, loan: Some(Arc::new(loan)), made: Vec::new() };
            for view in views {
                if let Memory::Mapped { map, .. } = &*view.memory {
                    view.memory = owners.of(&map.clone());
                }
            }
            return;
        }
        let mut bytes = Vec::with_capacity(views.iter().map(|view| view.len()).sum());
        let mut ranges = Vec::with_capacity(views.len());
        for view in &views {
            let start = bytes.len();
            bytes.extend_from_slice(view);
            ranges.push(start..bytes.len());
        }
        let memory = Arc::new(Memory::Private(bytes));
        for (view, range) in views.into_iter().zip(ranges) {
            *view = View { memory: memory.clone(), range };
        }
    }
}

/// Returns the extent of a batch's members in its slot, empty if all lie elsewhere; `None` if those
/// of a failed sample may lie anywhere.
fn extent(samples: &[Sample]) -> Option<Range<u64>> {
    let mut extent: Option<Range<u64>> = None;
    for sample in samples {
        let members = sample.members.as_ref().ok()?.iter();
        for member in members.filter(|member| member.memory == IN_SLOT) {
            let (start, end) = (member.offset, member.offset + member.len);
            extent = Some(match extent {
                Some(extent) => extent.start.min(start)..extent.end.max(end),
                None => start..end,
            });
        }
    }
    Some(extent.unwrap_or(0..0))
}

/// Samples with their members.
type Good<'a> = Vec<(&'a Sample, &'a [Member])>;

/// Returns the samples whose members are there, and the start of each in its shard; errors of the
/// others are added to `errors`.
fn good_samples<'a>(
    samples: &'a [Sample],
    offsets: &[u64],
    errors: &mut Vec<Error>,
) -> (Good<'a>, Vec<Option<u64>>) {
    let mut good = Good::with_capacity(samples.len());
    let mut good_offsets = Vec::with_capacity(samples.len());
    for (at, sample) in samples.iter().enumerate() {
        match &sample.members {
            Ok(members) => {
                good.push((sample, members));
                good_offsets.push(offsets.get(at).copied());
            }
            Err(error) if sample.valid => errors.push(error.clone()),
            // Padding repeats a sample; only that sample's own rank reports it.
            Err(_) => {}
        }
    }
    (good, good_offsets)
}

/// Output of the decoder, and the times in which its input was copied to a GPU.
struct Made {
    decoded: Decoded,
    brought: Vec<Range<u64>>,
}

impl Work {
    /// The data set of a mixture that a shard belongs to.
    fn stream_of(&self, shard: u32) -> u64 {
        self.streams.partition_point(|first| *first <= shard).saturating_sub(1) as u64
    }

    /// Returns an output's name and rows; bytes that need no decoding are views of the slab.
    fn rows(
        &self,
        output: Output,
        kept: &[usize],
        good: &[(&Sample, &[Member])],
        view: &dyn Fn(&Member) -> View,
    ) -> (String, Rows) {
        let views = match output.column {
            Column::Bytes(at) => {
                let pick =
                    |(row, at): (&usize, Option<usize>)| at.map(|at| view(&good[*row].1[at]));
                kept.iter().zip(at).map(pick).collect()
            }
            column => return (output.name, Rows::Decoded { column, present: output.present }),
        };
        let rows = match self.views.contains(&output.name) {
            true => Rows::Views(views),
            false => Rows::Bytes(views),
        };
        (output.name, rows)
    }

    /// Returns the decoder's input for the good samples of a batch.
    fn records<'a>(
        &'a self,
        good: &'a [(&'a Sample, &'a [Member])],
        fields: &'a [Vec<(&'a str, &'a [u8])>],
        offsets: &[Option<u64>],
    ) -> Vec<Record<'a>> {
        good.iter()
            .zip(fields)
            .zip(offsets)
            .map(|(((sample, _), fields), offset)| Record {
                key: &sample.key,
                url: self.urls.get(sample.url as usize).map_or("", String::as_str),
                stream: self.stream_of(sample.url),
                position: sample.position,
                offset: *offset,
                fields,
                has: &sample.has,
            })
            .collect()
    }

    /// Decodes `records`, on the GPU if there is one; `around` covers their bytes in the slab. The
    /// slot of `lease` stays taken until the GPU has copied from it.
    fn decode_fields(
        &self,
        decoder: &Decoder,
        records: &[Record<'_>],
        around: &[u8],
        epoch: u64,
        lease: &Arc<Lease>,
    ) -> Result<Made> {
        let mut brought = Vec::new();
        if let Some((device, _)) = &self.device {
            let start_ns = now_ns();
            device.copy_from(lease.slab());
            brought.push(start_ns..now_ns());
        }
        let mut decoded = decoder.decode(records, around, self.seed, epoch)?;
        if let (Some(done), Some((_, retiring))) = (decoded.done.take(), &self.device) {
            retiring.keep(done, lease.clone());
        }
        if self.device.is_some() {
            brought.push(decoded.brought.clone());
        }
        Ok(Made { decoded, brought })
    }

    /// Decodes a batch; samples that fail are in [`Batch::errors`]. Returns the batch, and the
    /// times in which its bytes were copied to a GPU.
    pub(super) fn decode(
        &self,
        batch: message::Batch,
        epoch: u64,
        offsets: &[u64],
        lease: &Arc<Lease>,
    ) -> Result<(Batch, Vec<Range<u64>>)> {
        let mut brought = Vec::new();
        let mut errors = batch.errors;
        let (good, good_offsets) = good_samples(&batch.samples, offsets, &mut errors);
        let fields: Vec<Vec<(&str, &[u8])>> = good
            .iter()
            .map(|(_, members)| {
                let bytes = |m: &Member| lease.map_of(m)?.get(m.offset, m.len);
                let named = |m: &Member| Ok((name(&batch.fields, *m)?, bytes(m)?));
                members.iter().map(named).collect()
            })
            .collect::<Result<_>>()?;
        let owners = Owners { lease: lease.clone(), loan: None, made: Vec::new() };
        let owners = RefCell::new(owners);
        let view = |member: &Member| View {
            // `Lease::map_of` and `Slab::get` above proved that the range fits the map.
            memory: owners.borrow_mut().of(lease.map_of(member).expect("found above")),
            range: member.offset as usize..(member.offset + member.len) as usize,
        };
        let (mut routes, mut slowest) = (Routes::new(), Vec::new());
        let (columns, kept) = match &self.decoder {
            None => {
                let column = |name: &String| {
                    let rows = good.iter().map(|(_, members)| {
                        let named = |m: &&Member| batch.fields.get(m.field as usize) == Some(name);
                        members.iter().find(named).map(view)
                    });
                    (name.clone(), Rows::Bytes(rows.collect()))
                };
                (batch.fields.iter().map(column).collect(), (0..good.len()).collect())
            }
            Some(decoder) => {
                let around = match extent(&batch.samples) {
                    Some(extent) => lease.slab().get(extent.start, extent.end - extent.start)?,
                    None => &[],
                };
                let records = self.records(&good, &fields, &good_offsets);
                let mut made = self.decode_fields(decoder, &records, around, epoch, lease)?;
                brought = made.brought;
                routes = std::mem::take(&mut made.decoded.routes);
                slowest = slowest::named(std::mem::take(&mut made.decoded.slowest), &records);
                let own = |bad: &BadSample| {
                    good[bad.index].0.valid || bad.error.kind() == ErrorKind::Full
                };
                errors.extend(made.decoded.bad.into_iter().filter(own).map(|bad| bad.error));
                let kept = made.decoded.kept;
                let columns = made.decoded.outputs.into_iter();
                let columns = columns.map(|output| self.rows(output, &kept, &good, &view));
                let columns = columns.collect();
                (columns, kept)
            }
        };
        let offsets = kept.iter().filter_map(|row| good_offsets[*row]).collect();
        let kept: Vec<&Sample> = kept.iter().map(|row| good[*row].0).collect();
        let decoded = Batch {
            index: batch.index,
            keys: kept.iter().map(|sample| sample.key.clone()).collect(),
            urls: kept.iter().map(|sample| sample.url).collect(),
            positions: kept.iter().map(|sample| sample.position).collect(),
            offsets,
            valid: kept.iter().map(|sample| sample.valid).collect(),
            columns,
            errors,
            tier_bytes: batch.bytes.tier,
            origin_bytes: batch.bytes.origin,
            routes,
            slowest,
            extent: extent(&batch.samples),
        };
        Ok((decoded, brought))
    }
}

fn name(fields: &[String], member: Member) -> Result<&str> {
    fields
        .get(member.field as usize)
        .map(String::as_str)
        .ok_or_else(|| Error::new(ErrorKind::Invalid, "the daemon named an unknown field"))
}
