//! Metrics of a daemon: they equal the work done, hide names from strangers, and are documented.

use std::fs;
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;

use forebay_admin::metrics_document;
use forebay_client::{Address, Next};
use forebay_tests::{
    Answer, Daemon, Installation, Installed, Origin, checkout, daemon_status, eventually, job,
    loader, next, play, promtool, run,
};
use forebay_wire::message::Begin;
use serde_json::Value;
use tempfile::TempDir;

use crate::ACTOR;

const TOKEN: &str = "0123456789abcdef0123456789abcdef";
const SIZES: std::ops::Range<usize> = 30_000..40_000;
const SHARDS: u64 = 4;
const SAMPLES: u64 = 40;
const MEMORY: u64 = 512 << 20;

/// A name that every format has to escape.
const ODD: &str = "res\"net\\50 {x=\"y\"}\né";

/// The same in quotes, as both formats have it.
const ESCAPED: &str = r#""res\"net\\50 {x=\"y\"}\né""#;

/// A daemon as an admin runs it, with a data set and a tenant of names that are nobody else's
/// business.
struct Bench {
    origin: Origin,
    installation: Installation,
    _daemon: Installed,
    tcp: SocketAddr,
    _disk: TempDir,
}

impl Bench {
    fn new() -> Self {
        let (origin, disk) = (Origin::with_shards(SHARDS, SAMPLES, &SIZES), Daemon::disk());
        let (cache, token) = (disk.path().join("cache"), disk.path().join("token"));
        fs::write(&token, format!("{TOKEN}\n")).unwrap();
        fs::set_permissions(&token, fs::Permissions::from_mode(0o600)).unwrap();
        let gid = rustix::process::getegid().as_raw();
        let rest = format!(
            "http = '127.0.0.1:0'\ntoken_file = {token:?}\n[[tier]]\nname = 'nvme'\npath = {cache:?}\n\
             capacity = '1GiB'\n{}[[dataset]]\nname = 'faces'\nmatch = '**/[01].tar'\n\
             [[tenant]]\nname = 'vision'\ngroups = [{gid}]\n",
            origin.rule()
        );
        let installation = Installation::new(ACTOR, disk.path(), MEMORY, &rest);
        let daemon = installation.start();
        let tcp = daemon.http_address();
        Self { origin, installation, _daemon: daemon, tcp, _disk: disk }
    }

    fn status(&self) -> Value {
        daemon_status(&self.installation.socket()).unwrap()
    }

    fn scrape(&self) -> Scraped {
        let socket = UnixStream::connect(self.installation.socket()).unwrap();
        Scraped::of(&Answer::to(socket, ("GET", "/metrics"), "host: localhost\r\n", ""))
    }

    fn over_tcp(&self, headers: &str) -> Answer {
        let headers = format!("host: {}\r\n{headers}", self.tcp);
        Answer::to(TcpStream::connect(self.tcp).unwrap(), ("GET", "/metrics"), &headers, "")
    }

    fn settle(&self) {
        eventually("nothing is under way", || {
            let status = self.status();
            let count = |what: &str| status["cache"][what].as_u64().unwrap();
            count("misses") == count("fills") + count("failed_fills") + count("through")
        });
    }
}

/// Content of a scrape.
struct Scraped {
    text: String,
    /// Name with labels as they are written, and value.
    samples: Vec<(String, f64)>,
}

impl Scraped {
    fn of(answer: &Answer) -> Self {
        assert_eq!(answer.status, 200, "{} {}", answer.head, answer.body);
        let text = answer.body.clone();
        let sample = |line: &str| {
            let (name, value) = line.rsplit_once(' ').unwrap();
            (name.to_owned(), value.parse().unwrap())
        };
        let samples = text.lines().filter(|line| !line.starts_with('#')).map(sample).collect();
        Self { text, samples }
    }

    /// The sum of a family's samples that have all of these labels, as they are written.
    fn sum(&self, family: &str, labels: &[&str]) -> f64 {
        let is_it = |(name, _): &&(String, f64)| {
            let rest = name.strip_prefix(family);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('{'))
                && labels.iter().all(|label| name.contains(label))
        };
        let found: Vec<_> = self.samples.iter().filter(is_it).collect();
        assert!(!found.is_empty(), "no {family} {labels:?} in {}", self.text);
        found.iter().map(|(_, value)| value).sum()
    }
}

fn number(of: &Value, path: &str) -> f64 {
    of.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {path} in {of}"))
}

#[test]
fn metrics_documentation_matches_the_code() {
    let path = checkout("docs/METRICS.md");
    if std::env::var_os("FOREBAY_WRITE_DOCS").is_some() {
        fs::write(&path, metrics_document()).unwrap();
    }
    let written = fs::read_to_string(&path).unwrap_or_default();
    assert!(
        written == metrics_document(),
        "docs/METRICS.md is old: its second line tells the cure"
    );
}

/// An alert that tells people to renew credentials must not lie in what a busy store says.
#[test]
fn rejections_and_failures_of_an_origin_are_separate() {
    let bench = Bench::new();
    let lost = job(&bench.origin, vec![Origin::url("lost.tar")]);
    let loader = loader(Address::Unix(bench.installation.socket()), lost).unwrap();
    let is_told = play(&loader, 0, 0).map_or(true, |epoch| !epoch.errors.is_empty());
    assert!(is_told, "there is no such shard");
    let scraped = bench.scrape();
    assert!(scraped.sum("forebay_origin_refusals_total", &[]) >= 1.0, "{}", scraped.text);
    assert_eq!(scraped.sum("forebay_origin_failures_total", &[]), 0.0, "{}", scraped.text);
}

#[test]
#[expect(clippy::too_many_lines, reason = "one course of events, in order")]
fn scraped_counters_equal_the_work_done() {
    let bench = Bench::new();
    let address = Address::Unix(bench.installation.socket());
    let mut open = job(&bench.origin, Origin::urls(SHARDS));
    open.job = ODD.to_owned();
    let loader = loader(address, open).unwrap();
    play(&loader, 0, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    bench.settle();
    // Nor is a terminal told anything by it.
    for shown in [&["job", "ls"][..], &["status"]] {
        let told = run(bench.installation.forebay(shown)).out;
        assert!(told.contains("res\"net\\50 {x=\"y\"}\u{fffd}é"), "{told}");
    }

    let (cold, status) = (bench.scrape(), bench.status());
    let lens: Vec<_> = (0..SHARDS).map(|n| bench.origin.bytes(&format!("{n}.tar")).len()).collect();
    let bytes = lens.iter().sum::<usize>() as f64;
    assert_eq!(cold.sum("forebay_origin_bytes_total", &[]), bytes);
    assert_eq!(cold.sum("forebay_tier_origin_bytes_total", &["tier=\"nvme\""]), bytes);
    assert_eq!(cold.sum("forebay_tier_used_bytes", &[]), number(&status, "/tiers/0/used_bytes"));
    assert_eq!(cold.sum("forebay_tier_misses_total", &["tier=\"nvme\""]), SHARDS as f64);
    assert_eq!(cold.sum("forebay_tier_fills_total", &[]), SHARDS as f64);
    assert_eq!(cold.sum("forebay_tier_misses_total", &["tier=\"none\""]), 0.0);
    assert_eq!(
        cold.sum("forebay_cache_miss_bytes_total", &[]),
        number(&status, "/cache/copied_bytes")
    );
    // The first sample of all was not there at once.
    assert!(cold.sum("forebay_shard_wait_seconds_count", &[]) >= 1.0);
    assert!(cold.sum("forebay_origin_first_byte_seconds_count", &[]) >= SHARDS as f64);
    assert_eq!(cold.sum("forebay_shard_fetch_seconds_count", &[]), SHARDS as f64);
    let held = |what: &str, name: &str| cold.sum(what, &[&format!("=\"{name}\"")]);
    let faces = (lens[0] + lens[1]) as f64;
    assert_eq!(held("forebay_dataset_used_bytes", "faces"), faces);
    assert_eq!(held("forebay_dataset_used_bytes", "(rest)"), bytes - faces);
    assert_eq!(held("forebay_tenant_used_bytes", "vision"), bytes);

    // Warm: bytes of batches are those of the tier, each data set's its own.
    play(&loader, 1, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
    let (warm, after) = (bench.scrape(), bench.status());
    let more = |family: &str, labels: &[&str]| warm.sum(family, labels) - cold.sum(family, labels);
    let told = |path: &str| number(&after, path) - number(&status, path);
    let read = told("/tiers/0/tier_read_bytes");
    assert!(read >= (SHARDS * SAMPLES) as f64 * SIZES.start as f64);
    assert_eq!(more("forebay_tier_read_bytes_total", &[]), read);
    assert_eq!(more("forebay_cache_hit_bytes_total", &[]), read);
    assert_eq!(more("forebay_io_bytes_total", &["operation=\"read\""]), read);
    assert_eq!(more("forebay_cache_miss_bytes_total", &[]), 0.0);
    assert_eq!(more("forebay_origin_bytes_total", &[]), 0.0);
    let halves = ["dataset=\"faces\"", "dataset=\"(rest)\""];
    for half in halves.map(|name| more("forebay_cache_hit_bytes_total", &[name])) {
        assert!(half > 0.4 * read && half < 0.6 * read, "{half} of {read}");
    }
    let reads = told("/tiers/0/engine/counters/reads");
    let of_reads = ["operation=\"read\""];
    assert!(reads > 0.0);
    assert_eq!(more("forebay_io_duration_seconds_count", &of_reads), reads);
    let all = ["operation=\"read\"", "le=\"+Inf\""];
    assert_eq!(more("forebay_io_duration_seconds_bucket", &all), reads);
    assert!(more("forebay_io_duration_seconds_sum", &of_reads) > 0.0);

    // The job is there under its name while it is connected, with what its trainer says of itself.
    let odd = format!("job={ESCAPED}");
    eventually("the trainer told of both epochs", || {
        let now = bench.scrape();
        let samples =
            now.samples.iter().find(|(name, _)| name.starts_with("forebay_consumer_samples"));
        samples.is_some_and(|(_, samples)| *samples == (2 * SHARDS * SAMPLES) as f64)
    });
    let (told, status) = (bench.scrape(), bench.status());
    let waited = status["jobs"][0]["progress"]["waited_seconds"].as_object().unwrap();
    assert!(waited.len() > 1);
    for (cause, seconds) in waited {
        let labels = [&*odd, &format!("cause=\"{cause}\"")];
        let scraped = told.sum("forebay_consumer_wait_seconds_total", &labels);
        assert_eq!(scraped, seconds.as_f64().unwrap(), "{cause}");
    }
    // Each batch's wait is in the histogram, and they are together what is booked to causes.
    let each =
        |what: &str| told.sum(&format!("forebay_consumer_wait_duration_seconds_{what}"), &[&*odd]);
    assert_eq!(each("count"), number(&status, "/jobs/0/progress/batches"));
    let all: f64 = waited.values().filter_map(Value::as_f64).sum();
    assert!((each("sum") - all).abs() < 1e-6, "{} of {all}", each("sum"));
    assert!(
        told.sum("forebay_consumer_wait_duration_seconds_bucket", &[&odd, "le=\"60.0\""]) > 0.0
    );
    assert_eq!(warm.sum("forebay_job_info", &[&odd, "tenant=\"vision\""]), 1.0);
    assert!(warm.sum("forebay_job_slab_bytes", &[&odd]) > 0.0);
    promtool(&["check", "metrics"], &warm.text);
    drop(loader);
    eventually("the job is gone", || !bench.scrape().text.contains("session="));
}

/// A shard of minutes is not told of at its end alone: its bytes count as they come.
#[test]
fn arriving_bytes_are_counted_as_they_come() {
    let bench = Bench::new();
    // Five parts, of which two come.
    bench.origin.put("large.tar", &forebay_testkit::shard(40, 9, &(900_000..1_000_000)));
    let (key, url) = (Origin::key("large.tar"), Origin::url("large.tar"));
    let len = bench.origin.bytes("large.tar").len() as f64;
    bench.origin.server.stall(&key, 16 << 20);
    let loader =
        loader(Address::Unix(bench.installation.socket()), job(&bench.origin, vec![url])).unwrap();
    loader.start(Begin::at(0, 0)).unwrap();
    let families = ["forebay_tier_origin_bytes_total", "forebay_tier_written_bytes_total"];
    let two_parts = f64::from(16 << 20);
    eventually("two parts came and were written", || {
        let now = bench.scrape();
        families.iter().all(|family| now.sum(family, &[]) == two_parts)
    });
    assert_eq!(bench.scrape().sum("forebay_tier_fills_total", &[]), 0.0, "it is not whole");
    bench.origin.server.release(&key);
    bench.settle();
    let whole = bench.scrape();
    assert_eq!(families.map(|family| whole.sum(family, &[])), [len, len], "each byte once");
    let of = ["dataset=\"(rest)\"", "tenant=\"vision\""];
    let bills = ["forebay_bill_origin_bytes_total", "forebay_bill_written_bytes_total"];
    assert_eq!(bills.map(|family| whole.sum(family, &of)), [len, len]);
    assert_eq!(whole.sum("forebay_bill_file_bytes_total", &of), 0.0);
    assert!(whole.sum("forebay_bill_requests_total", &of) > 0.0);
}

#[test]
fn scrapes_without_a_token_hold_no_names() {
    let bench = Bench::new();
    let address = Address::Unix(bench.installation.socket());
    let mut open = job(&bench.origin, Origin::urls(SHARDS));
    open.job = "secret".to_owned();
    let loader = loader(address, open).unwrap();
    loader.start(Begin::at(0, 0)).unwrap();
    assert!(matches!(next(&loader).unwrap(), Next::Batch(_)));
    // All of them come ahead of its batches.
    eventually("all its shards are here", || bench.status()["cache"]["fills"] == SHARDS);

    let stranger = bench.over_tcp("");
    let token = format!("authorization: Bearer {TOKEN}\r\n");
    let (nameless, whole) = (Scraped::of(&stranger), Scraped::of(&bench.over_tcp(&token)));
    let status = bench.status();
    let endpoint = status["sources"][0]["endpoint"].as_str().unwrap();
    for name in ["secret", "vision", "faces", "dataset=", endpoint, "127.0.0.1", "session="] {
        assert!(!nameless.text.contains(name), "{name}: {}", nameless.text);
        assert!(whole.text.contains(name), "{name}: {}", whole.text);
    }
    // What counts of sessions that come and go has no sum that only grows.
    for family in ["forebay_consumer_samples_total", "forebay_consumer_wait_seconds_total"] {
        assert!(!nameless.text.contains(family), "{family}: {}", nameless.text);
    }
    for family in ["forebay_origin_bytes_total", "forebay_tenant_used_bytes", "forebay_jobs"] {
        assert_eq!(nameless.sum(family, &[]), whole.sum(family, &[]), "{family}");
        assert!(nameless.samples.iter().filter(|(name, _)| name == family).count() == 1);
    }
    promtool(&["check", "metrics"], &nameless.text);
    bench.over_tcp("authorization: Bearer wrong\r\n").assert_problem(401, "PermissionDenied");

    assert!(stranger.head.contains("content-type: text/plain; version=0.0.4"), "{}", stranger.head);
    let accepts = "accept: application/openmetrics-text;version=1.0.0,text/plain;q=0.5\r\n";
    let newer = bench.over_tcp(accepts);
    assert!(newer.head.contains("content-type: application/openmetrics-text"), "{}", newer.head);
    assert!(newer.body.ends_with("# EOF\n"));
    assert!(bench.over_tcp("host: evil.example\r\n").status >= 400);
}

/// A stranger's scrape tells what all trainers of the node waited, and that never falls: what falls
/// is taken for a restart.
#[test]
fn wait_counters_outlive_their_trainers() {
    let bench = Bench::new();
    let nameless = || Scraped::of(&bench.over_tcp(""));
    let waited = || nameless().sum("forebay_node_wait_seconds_total", &[]);
    assert_eq!(waited(), 0.0);
    let mut least = 0.0;
    for _ in 0..2 {
        let address = Address::Unix(bench.installation.socket());
        let loader = loader(address, job(&bench.origin, Origin::urls(SHARDS))).unwrap();
        play(&loader, 0, 0).unwrap().assert_whole(SHARDS as u32, SAMPLES, &SIZES);
        eventually("its waits are among them", || waited() > least);
        least = waited();
        drop(loader);
        eventually("it left", || nameless().sum("forebay_jobs", &[]) == 0.0);
        assert!(waited() >= least, "{} after {least}", waited());
        least = waited();
    }
}
