//! What a monitoring system scrapes of a daemon: its status, as numbers with names.
//!
//! ```text
//!   Scrape     a status, and how much of it whoever asks may see   metrics.rs
//!     family     what a family is, and its samples                 metrics/family.rs
//!     node, tiers, origins, prefetch, jobs, shares   the families, by what they tell of
//!     text       both formats, and which is asked for              metrics/text.rs
//!     document   docs/METRICS.md                                   metrics/document.rs
//! ```
//! One rule: nothing is counted here. A family says how it is read from the status, beside its name and its help; so
//! what `forebay status` says, what is scraped and what is documented cannot differ.

mod document;
mod family;
mod jobs;
mod node;
mod origins;
mod prefetch;
mod shares;
mod text;
mod tiers;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

pub use document::document as metrics_document;
use family::{Family, Sample, Together, Value};
pub(crate) use text::Format;

use crate::status::Status;

/// Every family, in the order of the document.
fn families() -> impl Iterator<Item = &'static Family> {
    let parts: [&'static [Family]; 6] = [
        node::FAMILIES,
        tiers::FAMILIES,
        origins::FAMILIES,
        prefetch::FAMILIES,
        jobs::FAMILIES,
        shares::FAMILIES,
    ];
    parts.into_iter().flatten()
}

/// Whom a status is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Audience {
    /// Those who may know all of it.
    Admins,
    /// Strangers, who are told what names nobody: whatever has a label that says whose data it is about is told of all
    /// together.
    Anybody,
}

/// One scrape.
#[derive(Debug)]
pub(crate) struct Scrape {
    status: Status,
    audience: Audience,
}

impl Scrape {
    pub(crate) fn new(status: Status, audience: Audience) -> Self {
        Self { status, audience }
    }

    /// A family's labels as they are told, and its samples by their values.
    fn samples(&self, family: &Family) -> (Vec<&'static str>, BTreeMap<Vec<String>, Value>) {
        let is_told =
            |label: &&str| self.audience == Audience::Admins || !family::names_somebody(label);
        let labels: Vec<_> = family.labels.iter().copied().filter(is_told).collect();
        if labels.len() < family.labels.len() && family.together == Together::Untold {
            return (labels, BTreeMap::new());
        }
        let mut samples = BTreeMap::<Vec<String>, Value>::new();
        for Sample { values, value } in (family.read)(&self.status) {
            let values = family.labels.iter().zip(values).filter(|(label, _)| is_told(label));
            match samples.entry(values.map(|(_, value)| value).collect()) {
                Entry::Occupied(mut same) => same.get_mut().merge(value, family.together),
                Entry::Vacant(new) => drop(new.insert(value)),
            }
        }
        (labels, samples)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use forebay_store::{Counters, Fills, ForecastReport, Holding, Holdings};
    use forebay_uring::PageReport;

    use super::family::Kind;
    use super::*;
    use crate::status::{Cache, Job, Memory};

    /// A status with these jobs, of two tenants that hold something.
    fn status(jobs: Vec<Job>) -> Status {
        let holding = |name: &str, used_bytes| Holding {
            name: name.to_owned(),
            cache: None,
            evict: None,
            used_bytes,
            max_bytes: None,
            shards: 1,
        };
        let tenants = vec![holding("vision", 30), holding("speech", 12)];
        Status {
            release: "1",
            pid: 1,
            uptime_seconds: 1.0,
            configuration: None,
            cache: Cache {
                counters: Counters::default(),
                holdings: Holdings { datasets: Vec::new(), tenants },
                past_tiers: Vec::new(),
            },
            tiers: Vec::new(),
            sources: Vec::new(),
            mounts: Vec::new(),
            fills: Fills { running: 0, waiting: 0, limit: 4 },
            foresight: ForecastReport {
                jobs: Vec::new(),
                bandwidth: 1.0,
                slack: None,
                fetches: 0,
                evictions: 0,
                lacks: None,
            },
            frames: Memory { bytes: 0, in_use_bytes: 0, pages: PageReport::default() },
            slab_bytes: 0,
            slab_limit_bytes: 0,
            jobs,
            warm_ups: Vec::new(),
            audit: None,
            shard_waits: forebay_histogram::Times::default(),
        }
    }

    fn job(session: u64, name: &str) -> Job {
        Job {
            session,
            name: name.to_owned(),
            tenant: Some("vision".to_owned()),
            slab_bytes: 100,
            slab_batches: 4,
            leased_bytes: 0,
            lent_slots: 0,
            wrong_shards: 2,
            progress: None,
            told: crate::status::Told::default(),
        }
    }

    fn text(status: Status, audience: Audience) -> String {
        Scrape::new(status, audience).into_text(Format::Text).unwrap()
    }

    fn lines<'a>(text: &'a str, family: &str) -> Vec<&'a str> {
        let ends = |rest: &str| rest.starts_with(['{', ' ']);
        text.lines().filter(|line| line.strip_prefix(family).is_some_and(ends)).collect()
    }

    #[test]
    fn many_jobs_are_told_up_to_a_bound_and_the_others_counted() {
        let jobs = (0..1000).map(|n| job(n, &format!("job {n}"))).collect();
        let text = text(status(jobs), Audience::Admins);
        assert_eq!(lines(&text, "forebay_job_slab_bytes").len(), 256);
        assert_eq!(lines(&text, "forebay_jobs"), ["forebay_jobs 1000"]);
        assert_eq!(lines(&text, "forebay_jobs_untold"), ["forebay_jobs_untold 744"]);
        assert!(text.contains("job=\"job 255\"") && !text.contains("job 256"));
        let long = "x".repeat(5000);
        let text = self::text(status(vec![job(1, &long)]), Audience::Admins);
        assert!(text.contains(&"x".repeat(128)) && !text.contains(&"x".repeat(129)));
    }

    #[test]
    fn a_trainers_words_are_no_labels() {
        let mut hostile = job(1, "a\"b\\c\nd");
        for n in 0..64 {
            let why = BTreeMap::from([(format!("Why {n}?"), 1), ("plain".to_owned(), 1)]);
            hostile.told.decoders.insert(format!("by {n}"), why);
        }
        let text = text(status(vec![hostile]), Audience::Admins);
        let told = r#"forebay_job_decoded_rows_total{job="a\"b\\c\nd",session="1",decoder="other",reason=""#;
        let rows = lines(&text, "forebay_job_decoded_rows_total");
        assert_eq!(rows, [format!("{told}other\"}} 64"), format!("{told}plain\"}} 64")]);
    }

    #[test]
    fn without_names_there_are_sums() {
        let both = || status(vec![job(1, "secret"), job(2, "secret")]);
        let whole = text(both(), Audience::Admins);
        assert_eq!(lines(&whole, "forebay_tenant_used_bytes").len(), 2);
        assert!(whole.contains("secret"));
        let nameless = text(both(), Audience::Anybody);
        assert_eq!(lines(&nameless, "forebay_tenant_used_bytes"), ["forebay_tenant_used_bytes 42"]);
        let wrong = lines(&nameless, "forebay_job_wrong_shards_total");
        assert_eq!(wrong, ["forebay_job_wrong_shards_total 4"]);
        assert!(lines(&nameless, "forebay_job_info").is_empty());
        for name in ["secret", "vision", "speech"] {
            assert!(!nameless.contains(name), "{nameless}");
        }
    }

    #[test]
    fn both_formats_say_the_same_numbers() {
        let numbers = |text: &str| -> Vec<String> {
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
        };
        let both = || status(vec![job(1, "a")]);
        let older = text(both(), Audience::Admins);
        let newer = Scrape::new(both(), Audience::Admins).into_text(Format::OpenMetrics).unwrap();
        assert_eq!(numbers(&older), numbers(&newer));
        assert!(newer.ends_with("# EOF\n") && !older.contains("EOF"));
        assert!(older.contains("# TYPE forebay_job_wrong_shards_total counter"), "{older}");
        assert!(newer.contains("# TYPE forebay_job_wrong_shards counter"), "{newer}");
    }

    /// As promtool and the naming conventions of Prometheus want it.
    #[test]
    fn families_are_named_as_is_usual() {
        let mut names = BTreeSet::new();
        for family in families() {
            let Family { name, kind, labels, help, together, .. } = family;
            assert!(names.insert(name), "{name} is there twice");
            let word = |text: &str| {
                text.bytes().all(|b| b.is_ascii_lowercase() || b"_0123456789".contains(&b))
            };
            assert!(name.starts_with("forebay_") && word(name), "{name}");
            assert_eq!(*kind == Kind::Counter, name.ends_with("_total"), "{name}");
            for wrong in ["milli", "micro", "nano", "percent", "kib", "mib", "gib", "minutes"] {
                assert!(!name.split('_').any(|part| part.starts_with(wrong)), "{name}: base units");
            }
            if *kind == Kind::Histogram {
                assert!(name.ends_with("_seconds"), "{name}");
            }
            for suffix in ["_count", "_sum", "_bucket", "_created"] {
                assert!(!name.ends_with(suffix), "{name}: that is a histogram's");
            }
            assert!(labels.iter().all(|label| word(label) && !["le", "instance"].contains(label)));
            let distinct: BTreeSet<_> = labels.iter().collect();
            assert_eq!(distinct.len(), labels.len(), "{name}");
            assert!(
                help.ends_with('.') && !help.contains(['\n', '\\', '"', '|']),
                "{name}: {help}"
            );
            if *kind == Kind::Counter {
                assert_ne!(*together, Together::Least, "{name}: counters are added");
            }
        }
        assert!(names.len() > 100, "{}", names.len());
    }
}
