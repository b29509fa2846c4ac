//! Metrics of a daemon: its status, as named numbers.
//! ```text
//!   Scrape     a status, and the part the caller may see          metrics.rs
//!     family     a family and its samples                          metrics/family.rs
//!     node, tiers, peers, origins, prefetch, checkpoints, jobs, gpus, shares, bills
//!                                                                the families, by subject
//!     text       both formats, and their negotiation               metrics/text.rs
//!     document   docs/METRICS.md                                   metrics/document.rs
//! ```
//! Nothing is counted here. A family reads its samples from the status, and keeps its name and help
//! beside that; so `forebay status`, the scrape and the documentation cannot differ.

mod bills;
mod checkpoints;
mod document;
mod family;
mod gpus;
mod jobs;
mod node;
mod origins;
mod peers;
mod prefetch;
mod shares;
mod text;
mod tiers;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use forebay_api::status::Status;
use forebay_error::printable_char;

pub use document::document as metrics_document;
use family::{Family, Sample, Together, Value};
pub(crate) use text::Format;

/// Every family, in the order of the document.
fn families() -> impl Iterator<Item = &'static Family> {
    let parts: [&'static [Family]; 10] = [
        node::FAMILIES,
        tiers::FAMILIES,
        peers::FAMILIES,
        origins::FAMILIES,
        prefetch::FAMILIES,
        checkpoints::FAMILIES,
        jobs::FAMILIES,
        gpus::FAMILIES,
        shares::FAMILIES,
        bills::FAMILIES,
    ];
    parts.into_iter().flatten()
}

/// Audience of a status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Audience {
    /// Those who may know all of it.
    Admins,
    /// Strangers, who are told what names nobody: whatever has a label that says whose data it is
    /// about is told of all together.
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
            // Names come from others, and people read metrics in a terminal, too.
            match samples.entry(values.map(|(_, value)| plain(&value)).collect()) {
                Entry::Occupied(mut same) => same.get_mut().merge(value, family.together),
                Entry::Vacant(new) => drop(new.insert(value)),
            }
        }
        (labels, samples)
    }
}

/// A label's value without characters that a terminal obeys; both formats escape line ends.
fn plain(value: &str) -> String {
    value.chars().map(|c| if c == '\n' { c } else { printable_char(c) }).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use forebay_source::FileCounts;
    use forebay_store::{Counters, Fills, ForecastReport, Holding, Holdings, ThroughCounters};
    use forebay_uring::PageReport;
    use forebay_wire::message::Cause;

    use super::family::Kind;
    use super::*;
    use forebay_api::costs::ByCause;
    use forebay_api::gpus::{Activity, Gpu, GpuJob, GpuReport, Identity};
    use forebay_api::status::{Cache, Job, Memory};

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
            release: "1".to_owned(),
            pid: 1,
            uptime_seconds: 1.0,
            configuration: None,
            cache: Cache {
                counters: Counters::default(),
                holdings: Holdings { datasets: Vec::new(), tenants },
                past: ThroughCounters::default(),
                past_tiers: Vec::new(),
            },
            tiers: Vec::new(),
            sources: Vec::new(),
            mounts: Vec::new(),
            client_files: FileCounts::default(),
            fills: Fills { running: 0, waiting: 0, paused: 0, limit: 4 },
            foresight: ForecastReport {
                jobs: Vec::new(),
                bandwidth: 1.0,
                slack: None,
                fetches: 0,
                evictions: 0,
                lacks: None,
            },
            checkpoints: Default::default(),
            frames: Memory {
                bytes: 0,
                in_use_bytes: 0,
                copies_bytes: 0,
                pages: PageReport::default(),
            },
            slab_bytes: 0,
            slab_limit_bytes: 0,
            cluster: None,
            jobs,
            gpus: None,
            warm_ups: Vec::new(),
            audit: None,
            bills: Vec::new(),
            shard_waits: forebay_histogram::Times::default(),
            shard_fetches: forebay_histogram::Times::default(),
            waited_ns: ByCause::default(),
        }
    }

    fn job(session: u64, name: &str) -> Job {
        Job {
            session,
            name: name.to_owned(),
            tenant: Some("vision".to_owned()),
            pid: None,
            slab_bytes: 100,
            slab_batches: 4,
            leased_bytes: 0,
            lent_slots: 0,
            wrong_shards: 2,
            reading: None,
            progress: None,
            awaited: None,
            told: forebay_api::status::Told::default(),
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
    fn jobs_beyond_the_bound_are_only_counted() {
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
    fn trainer_text_is_escaped_and_bounded_in_labels() {
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
    fn anonymous_metrics_are_sums_without_names() {
        let both = || status(vec![job(1, "secret"), job(2, "secret")]);
        let whole = text(both(), Audience::Admins);
        assert_eq!(lines(&whole, "forebay_tenant_used_bytes").len(), 2);
        assert!(whole.contains("secret"));
        let nameless = text(both(), Audience::Anybody);
        assert_eq!(lines(&nameless, "forebay_tenant_used_bytes"), ["forebay_tenant_used_bytes 42"]);
        assert_eq!(lines(&nameless, "forebay_job_slab_bytes"), ["forebay_job_slab_bytes 200"]);
        assert_eq!(lines(&nameless, "forebay_job_slab_batches"), ["forebay_job_slab_batches 4"]);
        for untold in ["forebay_job_info", "forebay_job_wrong_shards_total"] {
            assert!(!lines(&whole, untold).is_empty(), "{untold}");
            assert!(lines(&nameless, untold).is_empty(), "{untold}");
        }
        for name in ["secret", "vision", "speech"] {
            assert!(!nameless.contains(name), "{nameless}");
        }
    }

    /// A GPU that a job computes on, and its labels as they are written.
    fn gpu(index: u32, jobs: Vec<GpuJob>) -> (Gpu, String) {
        let identity = Identity {
            index,
            uuid: format!("GPU-{index}"),
            pci_bus_id: format!("00000000:0{index}:00.0"),
            model: "NVIDIA H100".to_owned(),
        };
        let activity = Activity {
            is_monitored: true,
            over_seconds: Some(15.0),
            sm_share: Some(0.5),
            jpeg_shares: vec![0.25, 0.75],
            decoder_share: Some(0.0),
            pcie_in_bytes_per_second: Some(1024.0),
            pcie_out_bytes_per_second: Some(1.0),
            memory_bytes: Some(80),
            memory_used_bytes: Some(20),
        };
        let labels = format!(
            "gpu=\"{index}\",UUID=\"GPU-{index}\",pci_bus_id=\"00000000:0{index}:00.0\",device=\"nvidia{index}\",\
             modelName=\"NVIDIA H100\",Hostname=\"node7\""
        );
        (Gpu { identity, failing: None, activity, jobs, other_processes: 1 }, labels)
    }

    fn with_gpus(failing: Option<&str>) -> (Status, [String; 2]) {
        let here = vec![GpuJob { session: 2, name: "secret".to_owned() }];
        let ((mine, one), (mut lost, other)) = (gpu(0, here), gpu(1, Vec::new()));
        lost.failing = Some("it fell off the bus".to_owned());
        let gpus = GpuReport {
            host: "node7".to_owned(),
            driver: Some("580.65.06".to_owned()),
            failing: failing.map(str::to_owned),
            read_seconds_ago: Some(0.0),
            devices: vec![mine, lost],
        };
        let jobs = vec![job(1, "other"), job(2, "secret")];
        (Status { gpus: Some(gpus), ..status(jobs) }, [one, other])
    }

    #[test]
    fn gpu_metrics_have_dcgm_labels_and_jobs() {
        let (status, [mine, lost]) = with_gpus(None);
        let whole = text(status, Audience::Admins);
        let one = |family: &str, rest: &str| {
            assert_eq!(lines(&whole, family), [format!("{family}{{{mine}{rest}")]);
        };
        one("forebay_gpu_sm_utilization_ratio", "} 0.5");
        one("forebay_gpu_decoder_utilization_ratio", "} 0.0");
        one("forebay_gpu_memory_bytes", "} 80.0");
        one("forebay_gpu_memory_used_bytes", "} 20.0");
        one("forebay_gpu_observed_seconds", "} 15.0");
        one("forebay_gpu_other_processes", "} 1.0");
        one("forebay_gpu_info", ",driver=\"580.65.06\",counters=\"gpm\"} 1.0");
        one("forebay_gpu_job_info", ",job=\"secret\",session=\"2\",tenant=\"vision\"} 1.0");
        let family = "forebay_gpu_jpeg_utilization_ratio";
        let engine = |number, share| format!("{family}{{{mine},engine=\"{number}\"}} {share}");
        assert_eq!(lines(&whole, family), [engine(0, 0.25), engine(1, 0.75)]);
        let family = "forebay_gpu_pcie_bytes_per_second";
        let way = |way, rate| format!("{family}{{{mine},direction=\"{way}\"}} {rate}");
        assert_eq!(lines(&whole, family), [way("in", "1024.0"), way("out", "1.0")]);
        let up = ["1.0", "0.0"].into_iter().zip([&mine, &lost]);
        let up: Vec<_> = up.map(|(up, gpu)| format!("forebay_gpu_up{{{gpu}}} {up}")).collect();
        assert_eq!(lines(&whole, "forebay_gpu_up"), up);
        assert_eq!(lines(&whole, "forebay_gpu_driver_up"), ["forebay_gpu_driver_up 1"]);
        // A GPU is nobody's name; whose job it is, is.
        let nameless = text(with_gpus(None).0, Audience::Anybody);
        assert!(lines(&nameless, "forebay_gpu_job_info").is_empty());
        assert!(!nameless.contains("secret") && nameless.contains("GPU-0"));
    }

    #[test]
    fn silent_driver_leaves_no_stale_gpu_figures() {
        let (status, [mine, lost]) = with_gpus(Some("it is silent"));
        let silent = text(status, Audience::Admins);
        let told: Vec<_> = silent.lines().filter(|line| line.starts_with("forebay_gpu_")).collect();
        let down = [&mine, &lost].map(|gpu| format!("forebay_gpu_up{{{gpu}}} 0.0"));
        let expected = ["forebay_gpu_driver_up 0", &down[0], &down[1]];
        assert_eq!(told, expected);
        let without = text(self::status(vec![job(1, "a")]), Audience::Admins);
        assert!(!without.lines().any(|line| line.starts_with("forebay_gpu_")));
    }

    /// The node's totals never fall when a trainer leaves, for admins and others alike.
    #[test]
    fn node_wait_totals_are_shown_to_every_audience() {
        let mut waited_ns = ByCause::default();
        waited_ns[Cause::Origin as usize] = 1_500_000_000;
        for audience in [Audience::Admins, Audience::Anybody] {
            let text = text(Status { waited_ns, ..status(Vec::new()) }, audience);
            let told = lines(&text, "forebay_node_wait_seconds_total");
            assert_eq!(told.len(), Cause::ALL.len(), "{text}");
            assert!(told.contains(&"forebay_node_wait_seconds_total{cause=\"origin\"} 1.5"));
        }
    }

    #[test]
    fn both_formats_have_the_same_numbers() {
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

    /// Rules of promtool and of the naming conventions of Prometheus.
    #[test]
    fn metric_names_follow_prometheus_conventions() {
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
            let is_usual = |label: &&str| word(label) && !["le", "instance"].contains(label);
            // As dcgm-exporter spells them: a join needs the same.
            let is_dcgms = |label: &&str| ["UUID", "modelName", "Hostname"].contains(label);
            assert!(labels.iter().all(|label| is_usual(label) || is_dcgms(label)), "{name}");
            let distinct: BTreeSet<_> = labels.iter().collect();
            assert_eq!(distinct.len(), labels.len(), "{name}");
            assert!(
                help.ends_with('.') && !help.contains(['\n', '\\', '"', '|']),
                "{name}: {help}"
            );
            if *kind == Kind::Counter {
                assert_ne!(*together, Together::Least, "{name}: counters are added");
            }
            // The sum of those that are connected falls when one leaves, which is taken for a
            // restart.
            if *kind != Kind::Gauge && labels.contains(&"session") {
                assert_eq!(*together, Together::Untold, "{name}: sessions come and go");
            }
        }
        assert!(names.len() > 100, "{}", names.len());
    }
}
