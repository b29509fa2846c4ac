//! Checks that a disk has space for its tier.
//!
//! Space the cache already uses counts as free; space of others never does.

use forebay_config::settings::NodeTier;
use forebay_store::KeepFree;

use super::finding::{Finding, listed, size};
use super::mount_facts::{FreeSpace, MountFacts};
use super::plan::Plan;

const CHECK: &str = "space";

/// Shards smaller than this are rare, and slow everywhere: what a tier of so many needs of files is
/// enough.
const SHARD_LEAST: u64 = 64 << 20;

/// Files of a shard: its data, its sidecar, and one that is being written.
const FILES: u64 = 3;

/// `others`: the tiers beside it, with where they lie.
pub(super) fn check(
    plan: &Plan,
    at: usize,
    facts: &MountFacts,
    others: &[(&NodeTier, &MountFacts)],
) -> Finding {
    let Some(tier) = plan.tiers.get(at) else {
        return Finding::skipped(CHECK, "there is no such tier");
    };
    let FreeSpace { total, available, files_left, held } = facts.space;
    let keep = match tier.keep_free {
        KeepFree::Bytes(bytes) => bytes,
        KeepFree::Share(share) => (total as f64 * share) as u64,
    };
    let capacity = tier.capacity;
    let place = plan.place("tier", at, "capacity");
    let wanted = capacity.saturating_add(keep);
    let free = available.saturating_add(held);
    let beside = match keep {
        0 => String::new(),
        keep => format!(" beside {} for others", size(keep)),
    };
    let found = format!(
        "{}{beside} of {}, {} available, {} held by the cache",
        size(capacity),
        size(total),
        size(available),
        size(held)
    );
    let lower = |to: u64| format!("{place}: set capacity to {} or less", size(to));
    let sharing: Vec<_> = others.iter().filter(|(_, at)| at.device == facts.device).collect();
    let together =
        sharing.iter().fold(wanted, |sum, (other, _)| sum.saturating_add(other.capacity));
    let files = (capacity / SHARD_LEAST).saturating_mul(FILES);
    let finding = if wanted > total {
        let mend = lower(total.saturating_sub(keep));
        Finding::wrong(CHECK, format!("{found}: larger than its disk"), mend)
    } else if together > total {
        let names: Vec<_> = sharing.iter().map(|(other, _)| other.name.as_str()).collect();
        let names = listed(&names);
        Finding::wrong(
            CHECK,
            format!("{found}: with {names}, on the same disk, more than it holds"),
            lower(capacity.saturating_sub(together - total)),
        )
    } else if wanted > free {
        Finding::warn(
            CHECK,
            format!("{found}: other data takes so much that the tier never fills"),
            format!("free some of it, or {}", lower(free.saturating_sub(keep))),
        )
    } else if files_left.is_some_and(|left| left < files) {
        let left = files_left.unwrap_or(0);
        Finding::warn(
            CHECK,
            format!("{found}; {left} files can be made: shards of 64 MiB would need {files}"),
            "use larger shards, or format the disk for more files, which erases it (`mkfs.ext4 -i 1048576`, or xfs)",
        )
    } else {
        Finding::ok(CHECK, found)
    };
    let finding = finding
        .figure("capacity_bytes", capacity)
        .figure("keep_free_bytes", keep)
        .figure("total_bytes", total)
        .figure("available_bytes", available);
    finding.figure("held_bytes", held).figure("files_left", files_left)
}

#[cfg(test)]
mod tests {
    use super::super::finding::Verdict;
    use super::super::plan::test_plan;
    use super::*;

    const GIB: u64 = 1 << 30;
    const TEXT: &str = "[[tier]]\nname = 'a'\npath = '/mnt/a'\ncapacity = '100GiB'\n\
                        keep_free = '10%'\n\
                        [[tier]]\nname = 'b'\npath = '/mnt/b'\ncapacity = '50GiB'\n";

    fn room(total: u64, available: u64, held: u64, files_left: Option<u64>) -> MountFacts {
        let mut facts = MountFacts::sound();
        facts.space =
            FreeSpace { total: total * GIB, available: available * GIB, files_left, held };
        facts
    }

    fn of(facts: &MountFacts, other: Option<(u32, u32)>) -> Finding {
        let (plan, _folder) = test_plan(TEXT);
        let mut beside = MountFacts::sound();
        beside.device = other.unwrap_or((8, 1));
        check(&plan, 0, facts, &[(&plan.tiers[1], &beside)])
    }

    #[test]
    fn enough_space_is_ok_and_cached_bytes_count_as_free() {
        assert_eq!(of(&room(200, 120, 0, None), None).verdict, Verdict::Ok);
        assert_eq!(of(&room(200, 30, 90 * GIB, None), None).verdict, Verdict::Ok);
    }

    #[test]
    fn tier_larger_than_its_disk_is_wrong() {
        let finding = of(&room(110, 110, 0, None), None);
        assert_eq!(finding.verdict, Verdict::Wrong, "a tenth is kept free");
        let mend = finding.mend.unwrap();
        assert!(mend.contains("forebay.toml:4") && mend.contains("99.0 GiB"), "{mend}");
    }

    #[test]
    fn tiers_on_one_disk_must_fit_together() {
        let finding = of(&room(160, 160, 0, None), Some((259, 1)));
        assert_eq!(finding.verdict, Verdict::Wrong);
        assert!(finding.found.contains("with b"), "{finding:?}");
        assert_eq!(of(&room(170, 170, 0, None), Some((259, 1))).verdict, Verdict::Ok);
    }

    #[test]
    fn foreign_files_and_few_inodes_are_warnings() {
        let full = of(&room(200, 100, 0, None), None);
        assert_eq!(full.verdict, Verdict::Warn);
        assert!(full.mend.unwrap().contains("80.0 GiB"));
        let few = of(&room(200, 150, 0, Some(4799)), None);
        assert_eq!(few.verdict, Verdict::Warn, "{few:?}");
        assert_eq!(of(&room(200, 150, 0, Some(4800)), None).verdict, Verdict::Ok);
    }
}
