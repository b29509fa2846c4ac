//! Checkpoints and files that may be deleted.
//!
//! The newest published checkpoint stays under every rule, and nothing is deleted that no manifest
//! names.

use std::collections::{BTreeMap, HashSet};
use std::num::{NonZeroU32, NonZeroU64};
use std::time::Duration;

use forebay_error::{Error, ErrorKind, Result};

use crate::keys::{MANIFEST, receipt_name};
use crate::manifest::Manifest;

/// Age at which files of an attempt that was never published are leftovers: longer than a save may
/// take over a bad link, and than a night until somebody looks after a failed one.
pub const LEFTOVER: Duration = Duration::from_secs(24 * 3600);

/// Returns true if a file that is at its origin since `at_ms`, and in no published checkpoint, is a
/// leftover. A clock that was set back makes no leftovers.
#[must_use]
pub fn is_leftover(at_ms: u64, now_ms: u64) -> bool {
    Duration::from_millis(now_ms.saturating_sub(at_ms)) >= LEFTOVER
}

/// Rule for published checkpoints: the newest ones stay, and those of some steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keep {
    last: NonZeroU32,
    every: Option<NonZeroU64>,
}

/// One published checkpoint of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Published {
    /// URL of the checkpoint.
    pub url: String,
    /// Step of the training, if the job named one.
    pub step: Option<u64>,
    /// Time of the save, in milliseconds since 1970.
    pub saved_at_ms: u64,
}

impl Published {
    /// Order in time; at the same moment the later step is newer.
    fn age(&self) -> (u64, Option<u64>, &str) {
        (self.saved_at_ms, self.step, &self.url)
    }
}

impl Keep {
    /// A rule that keeps the `last` newest checkpoints, and each whose step is a multiple of
    /// `every`.
    ///
    /// # Errors
    /// `Invalid` for a zero.
    pub fn new(last: u32, every: Option<u64>) -> Result<Self> {
        let zero = |key: &str| {
            Error::new(ErrorKind::Invalid, format!("`keep.{key}` must be at least 1"))
                .at("keep", key)
        };
        let last = NonZeroU32::new(last).ok_or_else(|| zero("last"))?;
        let every = every.map(|every| NonZeroU64::new(every).ok_or_else(|| zero("every")));
        Ok(Self { last, every: every.transpose()? })
    }

    /// Number of newest checkpoints that stay.
    #[must_use]
    pub fn last(self) -> u32 {
        self.last.get()
    }

    /// Steps whose multiples stay, if any do.
    #[must_use]
    pub fn every(self) -> Option<u64> {
        self.every.map(NonZeroU64::get)
    }

    /// Returns the URLs to remove of `published`, the oldest first. A URL that is listed twice, as
    /// after an overwrite, counts as its newest checkpoint.
    #[must_use]
    pub fn expendable(self, published: &[Published]) -> Vec<&str> {
        let mut newest: BTreeMap<&str, &Published> = BTreeMap::new();
        for one in published {
            let known = newest.entry(&one.url).or_insert(one);
            if known.age() < one.age() {
                *known = one;
            }
        }
        let mut ordered: Vec<_> = newest.into_values().collect();
        ordered.sort_by_key(|one| one.age());
        let last = usize::try_from(self.last.get()).unwrap_or(usize::MAX);
        ordered.truncate(ordered.len().saturating_sub(last));
        ordered.retain(|one| !self.keeps_step(one.step));
        ordered.into_iter().map(|one| one.url.as_str()).collect()
    }

    fn keeps_step(self, step: Option<u64>) -> bool {
        step.zip(self.every).is_some_and(|(step, every)| step.is_multiple_of(every.get()))
    }
}

/// Returns the keys to delete of a published checkpoint, in this order: first `.metadata`, so that
/// nobody sees a part of it, last the manifest, so that an interrupted removal can go on.
#[must_use]
pub fn removal(manifest: &Manifest) -> Vec<String> {
    let mut keys = vec![manifest.metadata.name.to_string()];
    keys.extend(file_keys(manifest));
    keys.extend(manifest.before.iter().flat_map(|before| file_keys(before)));
    keys.push(MANIFEST.to_owned());
    keys
}

/// Returns the keys that only the manifest `before` names, once `now` takes its place.
#[must_use]
pub fn replaced(before: &Manifest, now: &Manifest) -> Vec<String> {
    let kept: HashSet<_> = file_keys(now).collect();
    file_keys(before).filter(|key| !kept.contains(key)).collect()
}

/// Keys of all files but `.metadata`, each followed by that of its receipt.
fn file_keys(manifest: &Manifest) -> impl Iterator<Item = String> {
    manifest.files.iter().flat_map(|file| [file.name.to_string(), receipt_name(file.id)])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::samples;

    fn published(list: &[(&str, Option<u64>, u64)]) -> Vec<Published> {
        let one = |(url, step, at): &(&str, Option<u64>, u64)| Published {
            url: (*url).to_owned(),
            step: *step,
            saved_at_ms: *at,
        };
        list.iter().map(one).collect()
    }

    #[test]
    fn newest_checkpoints_and_milestones_stay() {
        let list = published(&[
            ("d", Some(400), 4),
            ("a", Some(100), 1),
            ("b", Some(200), 2),
            ("x", None, 0),
            ("c", Some(300), 3),
        ]);
        for (last, every, removed) in [
            (1, None, vec!["x", "a", "b", "c"]),
            (2, None, vec!["x", "a", "b"]),
            (1, Some(200), vec!["x", "a", "c"]),
            (9, None, vec![]),
            (1, Some(1), vec!["x"]),
        ] {
            let keep = Keep::new(last, every).unwrap();
            assert_eq!(keep.expendable(&list), removed, "{keep:?}");
        }
    }

    #[test]
    fn overwritten_checkpoint_counts_once_as_its_newest() {
        let list = published(&[("a", Some(1), 1), ("b", Some(2), 2), ("a", Some(3), 3)]);
        assert_eq!(Keep::new(1, None).unwrap().expendable(&list), ["b"]);
    }

    #[test]
    fn rules_with_a_zero_are_rejected() {
        for (last, every, key) in [(0, None, "last"), (1, Some(0), "every"), (0, Some(0), "last")] {
            let error = Keep::new(last, every).unwrap_err();
            assert_eq!((error.kind(), error.place("keep")), (ErrorKind::Invalid, Some(key)));
        }
        let keep = Keep::new(5, Some(10_000)).unwrap();
        assert_eq!((keep.last(), keep.every()), (5, Some(10_000)));
    }

    #[test]
    fn removal_hides_first_and_forgets_last() {
        let keys = removal(&samples::manifest_of(&[("a", 5), ("b/c", 0)]));
        let receipt = |number: u8| format!(".forebay/{}.json", format!("{number:02x}").repeat(16));
        let wanted = [
            ".metadata".to_owned(),
            "a".to_owned(),
            receipt(1),
            "b/c".to_owned(),
            receipt(2),
            MANIFEST.to_owned(),
        ];
        assert_eq!(keys, wanted);
    }

    #[test]
    fn replaced_are_keys_that_the_new_manifest_lacks() {
        let before = samples::manifest_of(&[("a", 5), ("b", 0)]);
        let mut now = samples::manifest_of(&[("c", 1), ("b", 2)]);
        assert_eq!(replaced(&before, &now), ["a"], "samples of one number have one id");
        now.files[0].id = crate::FileId::from_bytes([9; 16]);
        assert_eq!(replaced(&before, &now), ["a".to_owned(), receipt_name(before.files[0].id)]);
        assert_eq!(replaced(&before, &before), Vec::<String>::new());
    }

    #[test]
    fn leftovers_are_a_day_old() {
        let day = u64::try_from(LEFTOVER.as_millis()).unwrap();
        for (at, now, is) in [(0, day - 1, false), (0, day, true), (5, day, false), (day, 0, false)]
        {
            assert_eq!(is_leftover(at, now), is, "{at} {now}");
        }
        assert!(is_leftover(0, u64::MAX));
    }

    fn list() -> impl Strategy<Value = Vec<Published>> {
        let one = ("[a-h]", prop::option::of(0..20_u64), 0..6_u64);
        let one = one.prop_map(|(url, step, saved_at_ms)| Published { url, step, saved_at_ms });
        prop::collection::vec(one, 0..12)
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 4096, ..ProptestConfig::default() })]

        /// Each removed checkpoint is older than as many others as must stay, and no milestone.
        #[test]
        fn only_old_checkpoints_are_removed(
            list in list(), last in 1..5_u32, every in prop::option::of(1..5_u64)
        ) {
            let keep = Keep::new(last, every).unwrap();
            let removed = keep.expendable(&list);
            let newest_of = |url: &str| {
                list.iter().filter(|one| one.url == url).max_by_key(|one| one.age()).unwrap()
            };
            let urls: HashSet<_> = list.iter().map(|one| one.url.as_str()).collect();
            let distinct: HashSet<_> = removed.iter().copied().collect();
            prop_assert_eq!(distinct.len(), removed.len(), "each once");
            for url in &urls {
                let one = newest_of(url);
                let newer = urls.iter().filter(|other| newest_of(other).age() > one.age()).count();
                let is_milestone =
                    one.step.zip(every).is_some_and(|(step, every)| step % every == 0);
                let stays = newer < last as usize || is_milestone;
                prop_assert_eq!(distinct.contains(url), !stays, "{}", url);
            }
            prop_assert!(removed.iter().map(|url| newest_of(url).age()).is_sorted());
        }

        /// A removal that was made leaves nothing more to remove, in whatever order it is listed.
        #[test]
        fn removing_twice_removes_nothing_more(list in list(), last in 1..5_u32) {
            let keep = Keep::new(last, None).unwrap();
            let removed = keep.expendable(&list);
            let mut rest: Vec<_> =
                list.iter().filter(|one| !removed.contains(&one.url.as_str())).cloned().collect();
            prop_assert_eq!(keep.expendable(&rest), Vec::<&str>::new());
            prop_assert_eq!(rest.is_empty(), list.is_empty());
            rest.reverse();
            prop_assert_eq!(keep.expendable(&rest), Vec::<&str>::new());
        }
    }
}
