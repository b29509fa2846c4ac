//! Screens of made-up status documents.

use forebay_api::gpus::{Activity, Gpu, GpuJob, GpuReport, Identity};
use forebay_api::progress::{Lately, ProgressReport};
use forebay_api::status::{Job, SlowSample, Told};
use forebay_peers::{ClusterReport, Fallback, Greeted, PeerReport};
use forebay_policy::Remedy;
use forebay_source::{LinkReport, MountReport};
use forebay_store::{Class, Evict, Expected, ForeseenJob, Refusal};
use ratatui::style::{Color, Modifier};

use super::*;

fn recent(share: f64) -> Lately {
    let causes = [("origin", share * 0.9), ("tier_read", share * 0.1)];
    Lately {
        seconds: 10.0,
        samples_per_second: 1234.4,
        bytes_per_second: 3.0e8,
        waited_share: share,
        waited_for: causes.map(|(cause, share)| (cause.to_owned(), share)).into(),
    }
}

fn progress(waiting_seconds: f64, lately: Option<Lately>) -> ProgressReport {
    ProgressReport {
        batches: 1,
        samples: 8,
        tier_bytes: 0,
        origin_bytes: 0,
        waited_seconds: [].into(),
        waiting_seconds,
        waits: Default::default(),
        heard_seconds_ago: 0.0,
        lately,
    }
}

fn job(session: u64, name: &str, share: f64) -> Job {
    Job {
        session,
        name: name.to_owned(),
        tenant: Some("vision".to_owned()),
        progress: Some(progress(0.0, Some(recent(share)))),
        ..Job::default()
    }
}

fn foreseen(job: u64, shards: usize, lacks: Option<Expected>) -> ForeseenJob {
    ForeseenJob { job, rate: 0.0, read: 0, waited: 0.0, shards, slack: None, lacks }
}

fn lacks(url: &str, needed_in: f64, arrives_in: Option<f64>) -> Expected {
    Expected { url: url.to_owned(), needed_in, arrives_in, refused: None }
}

fn holding(name: &str, used_bytes: u64, shards: usize, rule: Option<(Cache, Evict)>) -> Holding {
    let (cache, evict) = rule.unzip();
    Holding { name: name.to_owned(), cache, evict, used_bytes, max_bytes: None, shards }
}

fn tier(condition: Condition, mode: Mode, counters: Counters) -> TierReport {
    TierReport {
        name: "nvme".to_owned(),
        class: Class::Nvme,
        path: None,
        device: None,
        encryption: None,
        mode,
        condition,
        why: None,
        counters,
        traffic: Vec::new(),
        writes_left_bytes: None,
        engine: None,
        pages: None,
        lent_bytes: None,
    }
}

fn gpu(index: u32, failing: Option<&str>, activity: Activity, jobs: Vec<GpuJob>) -> Gpu {
    Gpu {
        identity: Identity {
            index,
            uuid: format!("GPU-{index}"),
            pci_bus_id: format!("00000000:0{index}:00.0"),
            model: "NVIDIA H100 80GB HBM3".to_owned(),
        },
        failing: failing.map(str::to_owned),
        activity,
        other_processes: if jobs.is_empty() { 0 } else { 2 },
        jobs,
    }
}

fn status() -> Status {
    let mut status =
        Status { release: "0.1.0".to_owned(), uptime_seconds: 7300.0, ..Status::default() };
    let long = "a-job-with-a-name-that-is-as-long-as-a-path/and/more";
    status.jobs = vec![job(1, "calm", 0.0), job(2, long, 0.34)];
    let counters = Counters {
        used_bytes: 1 << 40,
        capacity_bytes: 3 << 40,
        limit_bytes: 3 << 40,
        hits: 98,
        misses: 2,
        ..Counters::default()
    };
    status.cache.counters = Counters { origin_bytes: 5 * 1024, ..counters };
    status.cache.holdings.datasets = vec![
        holding("imagenet", 10, 3, Some((Cache::Always, Evict::Clairvoyant))),
        holding("(rest)", 20, 1, Some((Cache::Never, Evict::Sieve))),
    ];
    status.cache.holdings.tenants = vec![holding("(none)", 30, 4, None)];
    let why = Some("EIO".to_owned());
    status.tiers = vec![TierReport { why, ..tier(Condition::Down, Mode::Enabled, counters) }];
    status.sources = vec![LinkReport {
        endpoint: "https://s3.example".to_owned(),
        bytes: 1 << 30,
        under_way: 3,
        limit: 64,
        retries: 7,
        ..LinkReport::default()
    }];
    let busy = Activity {
        is_monitored: true,
        sm_share: Some(0.71),
        jpeg_shares: vec![0.3, 0.1],
        pcie_in_bytes_per_second: Some(1.5e9),
        memory_bytes: Some(80),
        memory_used_bytes: Some(20),
        ..Activity::default()
    };
    let calm = GpuJob { session: 1, name: "calm".to_owned() };
    let lost = gpu(1, Some("it fell off the bus"), Activity::default(), Vec::new());
    status.gpus = Some(GpuReport {
        host: "node7".to_owned(),
        driver: None,
        failing: None,
        read_seconds_ago: None,
        devices: vec![gpu(0, None, busy, vec![calm]), lost],
    });
    status.fills.running = 4;
    status.foresight.bandwidth = f64::from(1 << 30);
    status.foresight.slack = Some(-3.0);
    status.foresight.jobs = vec![
        foreseen(2, 9, Some(lacks("s3://bucket/000042.tar", 40.0, Some(12.0)))),
        foreseen(1, 9, None),
    ];
    status
}

fn lines(status: &Status, width: usize) -> Vec<Line<'static>> {
    Screen { status, before: None, width }.lines()
}

fn text(lines: &[Line<'_>]) -> String {
    lines.iter().map(Line::to_string).collect::<Vec<_>>().join("\n")
}

/// Returns the line that starts with these words.
fn find<'l>(lines: &'l [Line<'static>], words: &str) -> &'l Line<'static> {
    let found = lines.iter().find(|line| line.to_string().starts_with(words));
    found.unwrap_or_else(|| panic!("{words}:\n{}", text(lines)))
}

fn is_bad(line: &Line<'_>) -> bool {
    line.style.fg == Some(Color::Red)
}

#[test]
fn links_are_left_out_without_foresight() {
    let mut status = status();
    status.foresight = Default::default();
    let all = text(&lines(&status, 120));
    assert!(all.contains("4 shards arriving; no job announced its order\n"), "{all}");
    status.jobs = Vec::new();
    assert!(text(&lines(&status, 120)).contains("4 shards arriving\n"));
}

#[test]
fn jobs_that_wait_most_come_first() {
    let lines = lines(&status(), 120);
    let all = text(&lines);
    for words in [
        "up 2 h  2 jobs  cache 1.0 TiB of 3.0 TiB",
        "4 shards arriving; the next fetch is 3.0 s late; links bring 1.0 GiB/s",
        "1 of 2 jobs wait; a-job-with-a-name",
        "for 34 % of its time, mostly for origin.\nTier nvme is down.",
        "origin 31 %, tier read 3 %",
        "needed in 40 s, arrives in 12 s: s3://bucket/000042.tar",
        "all shards it needs are cached",
        "98 %  down, enabled, EIO",
        "71 %  20 %  1.4 GiB/s    25 %  calm, 2 others",
        "it fell off the bus",
        "imagenet",
        "never cached",
        "3 of 64",
    ] {
        assert!(all.contains(words), "{words}:\n{all}");
    }
    assert!(all.find("\na-job-with").unwrap() < all.find("\ncalm").unwrap(), "{all}");
    assert!(!all.contains("TENANT"), "a single tenant has the whole cache: {all}");
    let bad =
        ["a-job", "calm", "nvme", "0 NVIDIA", "1 NVIDIA"].map(|name| is_bad(find(&lines, name)));
    assert_eq!(bad, [true, false, true, false, true]);
}

#[test]
fn ranks_of_a_job_are_one_line() {
    let mut status = status();
    let ranks = (10..18).map(|n| job(n, "resnet", if n == 13 { 0.5 } else { 0.01 }));
    status.jobs = ranks.chain([job(1, "calm", 0.0)]).collect();
    status.foresight.jobs = vec![
        foreseen(10, 9, None),
        foreseen(11, 9, Some(lacks("s3://b/11.tar", 2.0, Some(1.0)))),
        foreseen(12, 9, Some(lacks("s3://b/12.tar", 9.0, Some(30.0)))),
        foreseen(1, 9, None),
    ];
    status.jobs[5].progress = Some(progress(62.0, Some(recent(0.01))));
    let lines = lines(&status, 120);
    assert!(lines[0].to_string().contains("  2 jobs, 9 ranks  "), "{lines:?}");
    assert_eq!(
        lines[1].to_string(),
        "1 of 2 jobs wait; a rank of resnet for 50 % of its time, mostly for origin."
    );
    assert_eq!(lines[2].to_string(), "a rank of resnet waits now, 62 s so far.");
    let line = find(&lines, "resnet");
    let cells = line.to_string();
    let cells: Vec<_> = cells.split_whitespace().collect();
    assert_eq!(cells[..5], ["resnet", "(vision)", "8", "9875", "2.2"], "{line:?}");
    assert!(line.to_string().contains("50 %  origin 45 %, tier read 5 %"), "{line:?}");
    assert!(is_bad(line) && !is_bad(find(&lines, "calm")));
    // Late shards come first, though another is needed sooner.
    let late = find(&lines, "  needed in");
    assert_eq!(late.to_string(), "  needed in 9.0 s, arrives in 30 s: s3://b/12.tar");
    assert!(is_bad(late));
    assert_eq!(find(&lines, "  waits now").to_string(), "  waits now, 62 s so far");
    assert_eq!(text(&lines).matches("\nresnet").count(), 1);
}

/// A shard without room before it is needed is no fault of its origin.
#[test]
fn missing_shards_have_their_cause() {
    let mut status = status();
    status.jobs = vec![job(1, "calm", 0.0)];
    let refused = |why| {
        let lacks = lacks("s3://b/1.tar", 4.0, None);
        foreseen(1, 9, Some(Expected { refused: Some(why), ..lacks }))
    };
    for (foreseen, words, is_late) in [
        (
            refused(Refusal::Room),
            "  needed in 4.0 s, there is no room for it before then: cached shards are needed \
             sooner, or a quota is full: s3://b/1.tar",
            false,
        ),
        (
            refused(Refusal::Origin),
            "  needed in 4.0 s, its origin does not deliver it: s3://b/1.tar",
            true,
        ),
        (foreseen(1, 9, None), "  all shards it needs are cached", false),
        (foreseen(1, 0, None), "  kept by use: missing shards are unknown in advance", false),
    ] {
        status.foresight.jobs = vec![foreseen];
        let lines = lines(&status, 160);
        let calm = lines.iter().position(|line| line.to_string().starts_with("calm")).unwrap();
        assert_eq!(
            (lines[calm + 1].to_string().as_str(), is_bad(&lines[calm + 1])),
            (words, is_late)
        );
        let is_dim = lines[calm + 1].style.add_modifier.contains(Modifier::DIM);
        assert_eq!(is_dim, !is_late);
    }
}

#[test]
fn verdict_lists_every_trouble() {
    let calm = || Status { jobs: vec![job(1, "calm", 0.0)], ..Status::default() };
    let verdict = |status: &Status| {
        let (lines, is_well) = Screen { status, before: None, width: 120 }.verdict();
        (lines.join(" "), is_well)
    };
    let well = |words: &str| (words.to_owned(), true);
    let sick = |words: &str| (words.to_owned(), false);
    let with_tier = |condition, mode, limit_bytes| {
        let counters = Counters { capacity_bytes: 1000, limit_bytes, ..Counters::default() };
        Status { tiers: vec![tier(condition, mode, counters)], ..calm() }
    };
    let filled = |limit| with_tier(Condition::Normal, Mode::Enabled, limit);
    assert_eq!(verdict(&filled(1000)), well("No job waits for data."));
    assert_eq!(verdict(&filled(950)), well("No job waits for data."));
    assert_eq!(
        verdict(&filled(512)),
        sick("Other data fills the disk of tier nvme: limit 512 B now.")
    );
    let down = |mode| with_tier(Condition::Down, mode, 1000);
    assert_eq!(verdict(&down(Mode::Enabled)), sick("Tier nvme is down."));
    assert_eq!(verdict(&down(Mode::Disabled)), well("No job waits for data."));
    let limit = "other data fills the disk: limit 950 B now";
    assert!(text(&lines(&filled(950), 120)).contains(limit));
    let remedy = |cache, bandwidth| {
        let mut status = calm();
        status.foresight.lacks = Some(Remedy { cache, bandwidth });
        verdict(&status)
    };
    assert_eq!(
        remedy(Some(1024), Some(2048.0)),
        sick("1.0 KiB more of cache, or 2.0 KiB/s more of link would end the waits.")
    );
    assert_eq!(remedy(None, Some(2048.0)), sick("2.0 KiB/s more of link would end the waits."));
    let source = |down| {
        let endpoint = "https://s3.example".to_owned();
        Status { sources: vec![LinkReport { endpoint, down, ..LinkReport::default() }], ..calm() }
    };
    let mount = |hangs| {
        let (mount, readers, stuck) = ("/lustre".into(), vec![7, 8], vec![8]);
        let mount = MountReport { mount, hangs, readers, stuck, ..MountReport::default() };
        Status { mounts: vec![mount], ..calm() }
    };
    for fine in [calm(), source(false), mount(false)] {
        assert_eq!(verdict(&fine), well("No job waits for data."));
    }
    assert_eq!(verdict(&source(true)), sick("https://s3.example does not answer."));
    assert_eq!(verdict(&mount(true)), sick("/lustre hangs; readers stuck there: 1."));
    let lines = lines(&mount(true), 120);
    let line = find(&lines, "/lustre  ");
    assert!(is_bad(line) && line.to_string().ends_with("2      1  hangs"), "{line:?}");
}

#[test]
fn jobs_that_wait_name_their_slowest_sample() {
    let slow = SlowSample { key: "n012".to_owned(), seconds: 0.25, ..SlowSample::default() };
    let told = Told { slowest: vec![slow], ..Told::default() };
    let shown = |share| {
        let job = Job { told: told.clone(), ..job(1, "resnet", share) };
        let lines = lines(&Status { jobs: vec![job], ..Status::default() }, 120);
        lines.iter().any(|line| line.to_string().contains("250 ms for n012"))
    };
    assert!(shown(0.5));
    assert!(!shown(0.0));
}

#[test]
fn long_waits_are_shown_while_they_last() {
    let verdict = |progress| {
        let slow = Job { progress: Some(progress), ..job(1, "slow", 0.0) };
        let status = Status { jobs: vec![slow], ..Status::default() };
        Screen { status: &status, before: None, width: 120 }.verdict()
    };
    let sick = |lines: &[&str]| (lines.iter().map(|&line| line.to_owned()).collect(), false);
    let waits = "slow waits now, 62 s so far.";
    // In its first second, and later.
    assert_eq!(verdict(progress(62.0, None)), sick(&["1 of 1 jobs wait.", waits]));
    let lately = Lately { waited_share: 1.0, waited_for: [].into(), ..recent(0.0) };
    assert_eq!(
        verdict(progress(62.0, Some(lately))),
        sick(&["1 of 1 jobs wait; slow for 100 % of its time.", waits])
    );
    assert!(verdict(progress(0.2, None)).1);
}

#[test]
fn lines_fit_narrow_terminals_and_keep_figures() {
    let status = status();
    for width in [80, 60, 40] {
        for line in (Screen { status: &status, before: Some(&status), width }).lines() {
            assert!(line.width() <= width, "{width}: {line:?}");
        }
    }
    let lines = lines(&status, 80);
    let job = find(&lines, "a-job").to_string();
    assert!(job.contains("1234") && job.contains("34 %") && job.contains("origin 31"), "{job}");
}

#[test]
fn names_cannot_control_the_terminal() {
    let mut status = status();
    status.jobs[0].name = "\x1b[2J\nforged".into();
    let url = "s3://b/\x1b]0;x\x07.tar";
    status.foresight.jobs[0] = foreseen(2, 9, Some(lacks(url, 40.0, None)));
    let lines = lines(&status, 100);
    assert!(lines.iter().all(|line| !line.to_string().contains(char::is_control)), "{lines:?}");
}

#[test]
fn rates_cover_the_time_between_two_looks() {
    let at = |uptime_seconds: f64, origin_bytes: u64| {
        let mut status = Status { uptime_seconds, ..Status::default() };
        status.cache.counters.origin_bytes = origin_bytes;
        status
    };
    let (before, now) = (at(1.0, 1024), at(3.0, 5 * 1024));
    let rates = |status, before| Screen { status, before: Some(before), width: 80 }.rates();
    let shown = rates(&now, &before).unwrap();
    assert!(shown.starts_with("2.0 KiB/s fetched, 0 B/s"), "{shown}");
    assert_eq!(rates(&at(1.0, 0), &at(9.0, 5000)), None);
}

fn member(name: &str) -> PeerReport {
    PeerReport {
        name: name.to_owned(),
        address: format!("{name}:9481"),
        slots: 16,
        is_self: false,
        is_down: false,
        error: None,
        is_silent: false,
        greeted: None,
        requests: 10,
        received_bytes: 3 << 20,
        fallbacks: Vec::new(),
    }
}

#[test]
fn nodes_of_a_cluster_in_trouble_come_first() {
    let greeted = Greeted { clock_ahead_seconds: -60, has_same_rules: false, is_draining: false };
    let members = vec![
        PeerReport { is_self: true, ..member("node0") },
        member("node1"),
        PeerReport { greeted: Some(greeted), ..member("node2") },
        PeerReport { is_down: true, fallbacks: vec![(Fallback::Silence, 7)], ..member("node3") },
        PeerReport {
            greeted: Some(Greeted {
                is_draining: true,
                has_same_rules: true,
                clock_ahead_seconds: 2,
            }),
            ..member("node4")
        },
    ];
    let cluster = ClusterReport {
        node: "node0".to_owned(),
        members,
        is_listed: true,
        is_frozen: true,
        source: "/etc/members".to_owned(),
        list_error: Some("line 3 is malformed".to_owned()),
        ..ClusterReport::default()
    };
    let status = Status { cluster: Some(cluster), ..Status::default() };
    let screen = Screen { status: &status, before: None, width: 120 };
    let told = screen.verdict();
    assert_eq!(
        told.0,
        [
            "the member list is an older one: /etc/members: line 3 is malformed.",
            "1 nodes of the cluster do not answer."
        ]
    );
    let shown = lines(&status, 120);
    let at = |name: &str| shown.iter().position(|line| line.to_string().contains(name)).unwrap();
    assert!(at("node2") < at("node3") && at("node3") < at("node0") && at("node1") < at("node4"));
    let line = |name: &str| shown[at(name)].to_string();
    assert!(line("node2").contains("other rules") && line("node2").contains("60 s behind"));
    assert!(line("node3").contains("down") && line("node3").contains("7 silence"));
    assert!(line("node4").contains("draining") && line("node1").contains("3.0 MiB"));
    assert_eq!(shown[at("node3")].style.fg, Some(Color::Red));
    let text = status.to_string();
    assert!(text.contains("node2: up, other rules") && text.contains("node3: down"), "{text}");
    assert!(!text.contains("node1:"), "{text}");
}
