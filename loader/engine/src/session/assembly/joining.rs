//! A batch's samples in joined shards, captured part by part.

use forebay_error::{Error, Result};
use forebay_shard::Member;
use forebay_store::ShardHandle;

use super::super::joined::{Gathered, Part, Requested, full_name, keys_differ};
use super::{Assembly, Facts, NAMES_SHOWN, Wanted, number_of, unusable};

impl Assembly {
    /// Records the places of the batch's samples in one part of a joined shard, or that it is
    /// `broken`; the first part comes first. Returns true if one of them has another key there.
    pub(in super::super) fn capture_part(
        &mut self,
        part: Part<'_>,
        shard: &ShardHandle,
        broken: Option<&Error>,
    ) -> bool {
        self.may_borrow(part.shard, shard);
        self.facts.push(Facts {
            shard: part.shard,
            verdict: shard.verdict().clone(),
            is_hearsay: shard.is_at_owner(),
            is_by_ranges: shard.is_by_ranges(),
        });
        let index = shard.index();
        let wanted = self.job.spec.fields.as_deref();
        let mut differs = false;
        for record in self.records.iter_mut().filter(|record| record.place.shard == part.first) {
            let is_first = part.shard == part.first;
            if is_first {
                record.gathered = Gathered::default();
                record.key.clear();
            }
            let gathered = &mut record.gathered;
            let ordinal = usize::try_from(record.place.ordinal).unwrap_or(usize::MAX);
            let sample = match (index.sample(ordinal), broken) {
                (Some(sample), _) if is_first || sample.key == record.key => sample,
                (None, Some(error)) => {
                    let error = error.clone().at("sample", record.place.ordinal);
                    gathered.failed.get_or_insert(error);
                    continue;
                }
                // The record says that the shard ends before this sample.
                (None, None) if is_first => {
                    gathered.failed = record.members.as_ref().err().cloned();
                    continue;
                }
                // The first part has no sample there, which is the fault to report.
                _ if gathered.failed.is_some() && record.key.is_empty() => continue,
                _ => {
                    differs = true;
                    gathered.strange.get_or_insert(part.shard);
                    continue;
                }
            };
            if is_first {
                record.key.clone_from(&sample.key);
                record.offset = sample.offset;
            }
            if let Some(why) = &sample.bad {
                let error = unusable(why, shard, &sample.key, sample.offset);
                gathered.failed.get_or_insert(error);
            }
            for member in index.members_of(&sample) {
                let name = full_name(part.name, &index.fields()[member.field as usize]);
                if gathered.names.len() < NAMES_SHOWN {
                    gathered.names.push(name.clone());
                }
                if wanted.is_none_or(|fields| fields.iter().any(|any| any.contains(&name))) {
                    gathered.members.push((name, part.shard, member));
                }
            }
        }
        differs
    }

    /// Makes samples of the captured parts of a joined shard. `differences` has the error of
    /// samples with another key in a part, by the part's shard.
    ///
    /// # Errors
    /// `Invalid` if two parts have a requested field.
    pub(in super::super) fn settle(
        &mut self,
        first: u32,
        differences: &[(u32, Error)],
    ) -> Result<()> {
        let job = self.job.clone();
        for record in self.records.iter_mut().filter(|record| record.place.shard == first) {
            let mut gathered = std::mem::take(&mut record.gathered);
            let names = std::mem::take(&mut gathered.names);
            let differs = gathered.strange.map(|strange| {
                let known = differences.iter().find(|(shard, _)| *shard == strange);
                let unknown = || keys_differ(job.url(first), job.url(strange));
                known.map_or_else(unknown, |(_, error)| error.clone()).at("key", &record.key)
            });
            if let Some(error) = gathered.failed.take().or(differs) {
                (record.has, record.members) = (names, Err(error));
                continue;
            }
            let Requested { members, is_complete } = gathered
                .requested(job.spec.fields.as_deref())
                .map_err(|error| error.at("url", job.url(first)).at("key", &record.key))?;
            if !is_complete {
                record.has = names;
            }
            let of = |(name, shard, member): (String, u32, Member)| Wanted {
                field: number_of(&mut self.fields, &name),
                shard,
                member,
                borrowed: None,
            };
            record.members = Ok(members.into_iter().map(of).collect());
        }
        Ok(())
    }
}
