//! Joined shards: the samples of one key in several tars form one sample.
//!
//! The plan knows the shards of first parts alone. Shards of the other parts follow them in the
//! job's list, and each completes the samples of one shard, place by place.

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::Member;
use forebay_wire::message::Joined;

/// Joins of a job; none for most.
#[derive(Debug, Default)]
pub(crate) struct Joins {
    /// Shards of first parts, and those that are not joined.
    planned: u32,
    groups: Vec<Group>,
}

/// Shards joined with those of the same parts.
#[derive(Debug)]
struct Group {
    first: u32,
    shards: u32,
    /// Number of the first shard of the second part.
    others: u32,
    parts: Vec<String>,
}

/// A shard that is a part of a joined one.
#[derive(Debug, Clone, Copy)]
pub(super) struct Part<'a> {
    /// The shard of the first part.
    pub(super) first: u32,
    /// The part's own shard.
    pub(super) shard: u32,
    /// Name before the names of its fields; empty for none.
    pub(super) name: &'a str,
}

impl Joins {
    /// Reads joins of a job that lists `listed` shards.
    ///
    /// # Errors
    /// `Invalid` for joins of another list.
    pub(crate) fn new(joined: &[Joined], listed: u32) -> Result<Self> {
        let other = || Error::new(ErrorKind::Invalid, "the joins belong to another job");
        let completing = joined.iter().try_fold(0_u32, |sum, join| {
            let others = u32::try_from(join.parts.len()).ok()?.checked_sub(1)?;
            sum.checked_add(others.checked_mul(join.shards)?)
        });
        let planned = completing.and_then(|others| listed.checked_sub(others)).ok_or_else(other)?;
        let (mut groups, mut next, mut others) = (Vec::new(), 0, planned);
        for Joined { first, shards, parts } in joined {
            let end = first.checked_add(*shards).filter(|end| *end <= planned);
            let end = end.filter(|_| *first >= next && *shards > 0 && parts.len() > 1);
            next = end.ok_or_else(other)?;
            groups.push(Group { first: *first, shards: *shards, others, parts: parts.clone() });
            others += shards * (parts.len() as u32 - 1);
        }
        Ok(Self { planned, groups })
    }

    /// Returns the number of shards that the plan orders.
    pub(crate) fn planned(&self) -> u32 {
        self.planned
    }

    /// Returns the parts of a planned shard, the first one first; none if it is not joined.
    pub(super) fn parts(&self, shard: u32) -> impl Iterator<Item = Part<'_>> {
        let at = self.groups.partition_point(|group| group.first <= shard);
        let group = at.checked_sub(1).map(|at| &self.groups[at]);
        let group = group.filter(|group| shard - group.first < group.shards);
        group.into_iter().flat_map(move |group| {
            (0_u32..).zip(&group.parts).map(move |(part, name)| {
                let own = match part {
                    0 => shard,
                    part => group.others + (part - 1) * group.shards + (shard - group.first),
                };
                Part { first: shard, shard: own, name }
            })
        })
    }

    /// Returns the numbers of the shards that complete a planned one.
    pub(super) fn others(&self, shard: u32) -> impl Iterator<Item = u32> {
        self.parts(shard).skip(1).map(|part| part.shard)
    }

    /// Returns the planned shard that a shard belongs to: itself, unless it completes another.
    pub(super) fn first_of(&self, shard: u32) -> u32 {
        let at = self.groups.partition_point(|group| group.others <= shard);
        match at.checked_sub(1).map(|at| &self.groups[at]) {
            Some(group) if shard >= self.planned => {
                group.first + (shard - group.others) % group.shards
            }
            _ => shard,
        }
    }

    /// Adds to `bytes` of planned shards those of the shards that complete them.
    pub(super) fn sums(&self, bytes: &[u64]) -> Vec<u64> {
        let of = |shard: u32| bytes.get(shard as usize).copied().unwrap_or(0);
        let sum = |shard: u32| self.others(shard).map(of).fold(of(shard), u64::saturating_add);
        (0..self.planned).map(sum).collect()
    }
}

/// Parts of one sample as they are captured, part by part.
#[derive(Debug, Default)]
pub(super) struct Gathered {
    /// Members that the job requests, by the names it knows them by.
    pub(super) members: Vec<(String, u32, Member)>,
    /// Names of all fields, as many as a message shows.
    pub(super) names: Vec<String>,
    /// Reason why a part of it cannot be used.
    pub(super) failed: Option<Error>,
    /// The first part at whose place there is no sample of the key.
    pub(super) strange: Option<u32>,
}

/// Requested members of one sample.
pub(super) struct Requested {
    pub(super) members: Vec<(String, u32, Member)>,
    /// True if each requested field is there.
    pub(super) is_complete: bool,
}

impl Gathered {
    /// Chooses the requested members: the first present alternative of each field, or all.
    ///
    /// # Errors
    /// `Invalid` if two parts have a field that is requested.
    pub(super) fn requested(mut self, fields: Option<&[Vec<String>]>) -> Result<Requested> {
        let mut is_complete = true;
        if let Some(fields) = fields {
            let mut chosen: Vec<&String> = Vec::with_capacity(fields.len());
            for alternatives in fields {
                let has = |name: &&String| self.members.iter().any(|(have, ..)| have == *name);
                match alternatives.iter().find(has) {
                    Some(name) => chosen.push(name),
                    None => is_complete = false,
                }
            }
            self.members.retain(|(name, ..)| chosen.contains(&name));
        }
        for (at, (name, shard, _)) in self.members.iter().enumerate() {
            let twice =
                self.members[..at].iter().any(|(have, from, _)| have == name && from != shard);
            if twice {
                return Err(Error::new(ErrorKind::Invalid, "two parts of a join have this field")
                    .at("field", name)
                    .advise(
                        "name one of the parts, as in forebay.Join({\"\": urls, \"more\": urls}): \
                         its fields are \"more.jpg\" and so on",
                    ));
            }
        }
        // Neighbours on disk stay neighbours in the slot.
        self.members.sort_by_key(|(_, shard, member)| (*shard, member.offset, member.field));
        Ok(Requested { members: self.members, is_complete })
    }
}

/// Returns the name by which the job knows a field of a part.
pub(super) fn full_name(part: &str, field: &str) -> String {
    match (part, field) {
        ("", field) => field.to_owned(),
        (part, "") => part.to_owned(),
        (part, field) => format!("{part}.{field}"),
    }
}

/// Place at which a shard of another part first differs from that of the first part.
#[derive(Debug, Clone)]
pub(super) struct Difference {
    pub(super) place: u64,
    pub(super) expected: Option<String>,
    pub(super) found: Option<String>,
}

impl Difference {
    /// Finds the first difference of two rows of keys.
    pub(super) fn of(
        expected: impl Iterator<Item = String>,
        found: impl Iterator<Item = String>,
    ) -> Option<Self> {
        let (mut expected, mut found) = (expected.fuse(), found.fuse());
        for place in 0.. {
            match (expected.next(), found.next()) {
                (None, None) => return None,
                (expected, found) if expected == found => {}
                (expected, found) => return Some(Self { place, expected, found }),
            }
        }
        None
    }

    /// Returns the error of samples from this place on; `url` and `joined` are the two shards.
    pub(super) fn error(&self, url: &str, joined: &str) -> Error {
        let shown = |key: &Option<String>| key.clone().unwrap_or_else(|| "no sample".to_owned());
        keys_differ(url, joined)
            .at("position", self.place)
            .at("expected", shown(&self.expected))
            .at("found", shown(&self.found))
    }
}

/// Returns the error of a shard whose keys are not those of the first part's shard.
pub(super) fn keys_differ(url: &str, joined: &str) -> Error {
    Error::new(ErrorKind::Corrupt, "the keys of joined shards differ")
        .at("url", url)
        .at("joined", forebay_error::shown(joined))
        .advise("make all parts from the same keys in the same order")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(first: u32, shards: u32, parts: &[&str]) -> Joined {
        Joined { first, shards, parts: parts.iter().map(|part| (*part).to_owned()).collect() }
    }

    #[test]
    fn each_planned_shard_has_one_of_each_part() {
        // Shards 0 to 2 in three parts, 3 and 4 alone, 5 and 6 in two parts.
        let joins = [joined(0, 3, &["", "a", "b"]), joined(5, 2, &["x", ""])];
        let joins = Joins::new(&joins, 7 + 6 + 2).unwrap();
        assert_eq!(joins.planned(), 7);
        let parts = |shard| {
            joins.parts(shard).map(|part| (part.shard, part.name.to_owned())).collect::<Vec<_>>()
        };
        let named = |all: &[(u32, &str)]| {
            all.iter().map(|(shard, name)| (*shard, (*name).to_owned())).collect::<Vec<_>>()
        };
        assert_eq!(parts(1), named(&[(1, ""), (8, "a"), (11, "b")]));
        assert_eq!(parts(3), []);
        assert_eq!(parts(6), named(&[(6, "x"), (14, "")]));
        for shard in 0..7 {
            assert_eq!(joins.first_of(shard), shard);
            assert!(joins.others(shard).all(|other| joins.first_of(other) == shard));
        }
        let bytes: Vec<u64> = (0..15).map(|shard| 1 << shard).collect();
        assert_eq!(joins.sums(&bytes)[1], 1 << 1 | 1 << 8 | 1 << 11);
        assert_eq!(joins.sums(&bytes)[3], 1 << 3);
    }

    #[test]
    fn joins_of_another_list_are_rejected() {
        let all = |joins: &[Joined], listed| Joins::new(joins, listed).map(|_| ());
        assert!(all(&[], 3).is_ok());
        assert!(all(&[joined(0, 2, &["", "a"])], 4).is_ok());
        for (joins, listed) in [
            (vec![joined(0, 2, &["", "a"])], 3),
            (vec![joined(0, 2, &["", "a"])], 1),
            (vec![joined(0, 2, &[""])], 4),
            (vec![joined(0, 2, &[])], 4),
            (vec![joined(0, 0, &["", "a"])], 4),
            (vec![joined(0, 2, &["", "a"]), joined(1, 2, &["", "a"])], 9),
            (vec![joined(u32::MAX, 2, &["", "a"])], 9),
            (vec![joined(0, u32::MAX, &["", "a", "b"])], 9),
        ] {
            let error = all(&joins, listed).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{joins:?} of {listed}");
        }
    }

    #[test]
    fn first_difference_is_found() {
        let keys = |all: &'static [&'static str]| all.iter().map(|key| (*key).to_owned());
        let of = |a, b| {
            let found = Difference::of(keys(a), keys(b))?;
            Some((found.place, found.expected, found.found))
        };
        assert_eq!(of(&["a", "b"], &["a", "b"]), None);
        let (b, c) = (Some("b".to_owned()), Some("c".to_owned()));
        assert_eq!(of(&["a", "b", "c"], &["a", "c"]), Some((1, b.clone(), c)));
        assert_eq!(of(&["a", "b"], &["a"]), Some((1, b.clone(), None)));
        assert_eq!(of(&["a"], &["a", "b"]), Some((1, None, b)));
    }

    #[test]
    fn fields_of_two_parts_are_an_error_only_if_requested() {
        let member = |offset| Member { field: 0, offset, len: 1, crc32c: 0 };
        let gathered = || Gathered {
            members: vec![
                ("jpg".to_owned(), 0, member(7)),
                ("json".to_owned(), 0, member(1)),
                ("json".to_owned(), 9, member(3)),
            ],
            ..Gathered::default()
        };
        let fields = |names: &[&[&str]]| -> Vec<Vec<String>> {
            let list = |names: &&[&str]| names.iter().map(|name| (*name).to_owned()).collect();
            names.iter().map(list).collect()
        };
        assert_eq!(gathered().requested(None).err().unwrap().kind(), ErrorKind::Invalid);
        let twice = fields(&[&["jpg"], &["json"]]);
        assert!(gathered().requested(Some(&twice)).is_err());
        let found = gathered().requested(Some(&fields(&[&["png", "jpg"]]))).unwrap();
        assert_eq!(found.members.len(), 1);
        assert!(found.is_complete);
        assert!(!gathered().requested(Some(&fields(&[&["png"]]))).unwrap().is_complete);
    }
}
