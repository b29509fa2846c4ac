//! Files that operators load into Prometheus and Grafana: every query names existing metrics, and
//! every panel shows something when there is something to show.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::net::UnixStream;

use forebay_admin::metrics_document;
use forebay_client::{Address, Loader};
use forebay_testkit::shard;
use forebay_tests::{
    Answer, Daemon, Installation, Installed, Origin, checkout, eventually, job, job_with, loader,
    play, promtool,
};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::ACTOR;

const MEMORY: u64 = 512 << 20;
const SIZES: std::ops::Range<usize> = 30_000..40_000;
const SAMPLES: u64 = 40;

/// Series absent while no shard is missing, nothing hangs, nothing is bad and nothing is decoded.
const NO_TROUBLE: &[&str] = &[
    "Prefetch slack {{instance}}",
    "Prefetch slack {{instance}} {{job}} {{session}}",
    "Rows by decoder {{decoder}}: {{reason}}",
    "Bad samples by kind {{kind}}",
];

/// Series of endpoints.
const NO_ENDPOINTS: &[&str] = &[
    "Received {{source}}",
    "Latency of endpoints {{source}} first byte, median",
    "Latency of endpoints {{source}} first byte, 99 %",
    "Latency of endpoints {{source}} last byte, 99 %",
    "Requests {{source}} running",
    "Requests {{source}} waiting",
    "Requests {{source}} limit",
    "Trouble with endpoints and mounts {{source}} failed",
    "Trouble with endpoints and mounts {{source}} repeated",
    "Trouble with endpoints and mounts {{source}} asked twice",
    "Trouble with endpoints and mounts {{source}} refused",
];

/// Series of GPUs, and of jobs that compute on them.
const NO_GPUS: &[&str] = &[
    "Busy GPUs {{instance}} GPU {{gpu}}, SM",
    "Busy GPUs {{instance}} GPU {{gpu}}, JPEG",
    "PCIe of GPUs {{instance}} GPU {{gpu}}, in",
    "PCIe of GPUs {{instance}} GPU {{gpu}}, out",
    "Memory of GPUs {{instance}} GPU {{gpu}}",
    "GPUs that cannot be read {{instance}} driver",
    "GPUs that cannot be read {{instance}} GPU {{gpu}}",
    "GPUs of the job {{instance}} {{job}} GPU {{gpu}}, SM",
    "GPUs of the job {{instance}} {{job}} GPU {{gpu}}, JPEG",
    "PCIe of the job's GPUs {{instance}} {{job}} GPU {{gpu}}, in",
    "PCIe of the job's GPUs {{instance}} {{job}} GPU {{gpu}}, out",
];

/// Series of quotas.
const NO_QUOTAS: &[&str] = &[
    "Closest to its quota",
    "Held by data set {{instance}} {{dataset}}, quota",
    "Held by tenant {{instance}} {{tenant}}, quota",
];

/// Each family of the document with its labels.
fn documented() -> BTreeMap<String, BTreeSet<String>> {
    let document = metrics_document();
    let rows = document.lines().filter_map(|line| line.strip_prefix("| `"));
    rows.map(|row| {
        let mut cells = row.split(" | ");
        let name = cells.next().unwrap().trim_end_matches('`').to_owned();
        let labels = cells.nth(1).unwrap().replace('*', "");
        let labels = labels.split(", ").map(|label| label.trim().to_owned());
        (name, labels.filter(|label| !label.is_empty()).collect())
    })
    .collect()
}

/// That a text names only families that there are, and asks them for labels that they have.
fn assert_known(text: &str, families: &BTreeMap<String, BTreeSet<String>>) {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for (at, _) in text.match_indices("forebay_") {
        if text[..at].ends_with(is_word) {
            continue;
        }
        let len = text[at..].find(|c| !is_word(c)).unwrap_or(text.len() - at);
        let (name, rest) = text[at..].split_at(len);
        let of_histogram = ["_bucket", "_count", "_sum"].iter().find_map(|s| name.strip_suffix(s));
        let known = families.get(name).or_else(|| families.get(of_histogram?));
        let labels = known.unwrap_or_else(|| panic!("there is no {name}: {text}"));
        let Some(asked) = rest.strip_prefix('{').and_then(|rest| rest.split('}').next()) else {
            continue;
        };
        for part in asked.split(',').map(str::trim) {
            let label = part.split(['=', '!']).next().unwrap();
            // What Prometheus adds of its own: the node, and the name of the scrape.
            let is_added = label == "instance" || part == "job=\"forebay\"";
            let is_there = is_added || label == "le" || labels.contains(label);
            assert!(is_there, "{name} has no label {label:?}: {text}");
        }
    }
}

/// The strings of a document that have this key.
fn under<'a>(key: &str, value: &'a Value, found: &mut Vec<&'a str>) {
    match value {
        Value::Object(fields) => {
            for (name, value) in fields {
                found.extend(value.as_str().filter(|_| name == key));
                under(key, value, found);
            }
        }
        Value::Array(values) => values.iter().for_each(|value| under(key, value, found)),
        _ => {}
    }
}

#[test]
fn alerts_use_known_metrics_and_fire_as_expected() {
    let folder = checkout("deploy/prometheus");
    let (rules, tests) = (folder.join("forebay.rules.yml"), folder.join("forebay.rules.test.yml"));
    let text = fs::read_to_string(&rules).unwrap();
    let tested = fs::read_to_string(&tests).unwrap();
    let families = documented();
    for line in text.lines().chain(tested.lines()) {
        assert_known(line, &families);
    }
    let alerts: Vec<_> = text.split("- alert: ").skip(1).collect();
    assert!(alerts.len() > 10);
    // What people get of each: promtool compares the texts word by word.
    let worded: BTreeSet<_> = tested
        .split("alertname: ")
        .skip(1)
        .filter(|test| test.contains("exp_annotations:"))
        .map(|test| test.lines().next().unwrap())
        .collect();
    for alert in alerts {
        let name = alert.lines().next().unwrap();
        assert!(tested.contains(&format!("\"{name}\"")), "nothing tests when {name} fires");
        assert!(worded.contains(name), "nothing tests what {name} says");
        for part in ["severity:", "summary:", "description:"] {
            assert!(alert.contains(part), "{name} has no {part}");
        }
    }
    promtool(&["check", "rules", rules.to_str().unwrap()], "");
    promtool(&["test", "rules", tests.to_str().unwrap()], "");
    let config = folder.join("prometheus.yml");
    promtool(&["check", "config", "--syntax-only", config.to_str().unwrap()], "");
}

#[test]
fn dashboards_query_known_metrics() {
    let families = documented();
    let mut rules = "groups:\n- name: dashboards\n  rules:\n".to_owned();
    let mut named = BTreeSet::new();
    for file in fs::read_dir(checkout("deploy/grafana")).unwrap() {
        let path = file.unwrap().path();
        let dashboard: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
        let (mut asked, mut legends, mut variables) = (Vec::new(), Vec::new(), Vec::new());
        under("expr", &dashboard, &mut asked);
        under("legendFormat", &dashboard, &mut legends);
        under("definition", &dashboard, &mut variables);
        assert!(asked.len() > 10 && asked.len() == legends.len(), "{}", path.display());
        for (query, legend) in asked.iter().zip(legends) {
            assert_known(query, &families);
            for label in legend.split("{{").skip(1).map(|rest| rest.split("}}").next().unwrap()) {
                let is_kept = query.contains(&format!("by ({label}"))
                    || query.contains(&format!("{label}, "))
                    || query.contains(&format!(", {label}"))
                    || !query.contains("by (");
                assert!(is_kept, "{label} is summed away: {query}");
            }
            let query = query.replace("$__rate_interval", "5m");
            let query = serde_json::to_string(&query).unwrap();
            rules.push_str(&format!("  - record: r{}\n    expr: {query}\n", rules.len()));
        }
        variables.iter().for_each(|variable| assert_known(variable, &families));
        let names = dashboard["uid"].as_str().unwrap().to_owned();
        assert!(named.insert(names), "two dashboards have one name");
    }
    assert_eq!(named, ["forebay-dataset", "forebay-job", "forebay-node"].map(str::to_owned).into());
    // As rules, so that each query is parsed as Prometheus does.
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("dashboards.yml");
    fs::write(&file, rules).unwrap();
    promtool(&["check", "rules", file.to_str().unwrap()], "");
}

/// Queries with the titles of their panels and of what they draw there, as Grafana asks them for
/// everything that there is.
fn queries() -> Vec<(String, String)> {
    let mut found = Vec::new();
    for file in fs::read_dir(checkout("deploy/grafana")).unwrap() {
        let text = fs::read_to_string(file.unwrap().path()).unwrap();
        let dashboard: Value = serde_json::from_str(&text).unwrap();
        for panel in dashboard["panels"].as_array().unwrap() {
            let (mut asked, mut legends) = (Vec::new(), Vec::new());
            under("expr", panel, &mut asked);
            under("legendFormat", panel, &mut legends);
            for (query, legend) in asked.iter().zip(legends) {
                let mut query = query.replace("$__rate_interval", "5m");
                for variable in ["$instance", "$job", "$dataset"] {
                    query = query.replace(variable, ".*");
                }
                assert!(!query.contains('$'), "{query}");
                let title = format!("{} {legend}", panel["title"].as_str().unwrap());
                found.push((title.trim_end().to_owned(), query));
            }
        }
    }
    found
}

/// A daemon that is scraped twice.
struct Scraped {
    installation: Installation,
    _daemon: Installed,
    disk: TempDir,
    scrapes: Vec<String>,
}

impl Scraped {
    /// A daemon with this of a configuration beside its tier.
    fn new(rest: &str) -> Self {
        let disk = Daemon::disk();
        let cache = disk.path().join("cache");
        let rest = format!("[[tier]]\nname = 'nvme'\npath = {cache:?}\ncapacity = '1GiB'\n{rest}");
        let installation = Installation::new(ACTOR, disk.path(), MEMORY, &rest);
        let daemon = installation.start();
        Self { installation, _daemon: daemon, disk, scrapes: Vec::new() }
    }

    /// URLs of so many shards in files.
    fn files(&self, shards: u64) -> Vec<String> {
        let file = |n: u64| {
            let path = self.disk.path().join(format!("{n}.tar"));
            fs::write(&path, shard(SAMPLES, n, &SIZES)).unwrap();
            path.display().to_string()
        };
        (0..shards).map(file).collect()
    }

    fn loader(&self, open: forebay_wire::message::Open) -> Loader {
        loader(Address::Unix(self.installation.socket()), open).unwrap()
    }

    fn ask(&self) -> String {
        let socket = UnixStream::connect(self.installation.socket()).unwrap();
        Answer::to(socket, ("GET", "/metrics"), "host: localhost\r\n", "").body
    }

    /// Scrapes the daemon after so many trainers reported their progress and so many fetches
    /// ended: a fetch counts once its shard is committed, and trainers read shards that still
    /// arrive.
    fn scrape(&mut self, trainers: usize, shards: usize) {
        let fetched = format!("forebay_shard_fetch_seconds_count {shards}");
        eventually("trainers report their progress and fetches end", || {
            let answer = self.ask();
            answer.matches("forebay_consumer_samples_total{").count() == trainers
                && answer.lines().any(|line| line == fetched)
        });
        self.scrapes.push(self.ask());
    }

    /// Returns the scrapes as series of a promtool test: the first scrape two minutes long, the
    /// second from then on.
    fn series(&self) -> Vec<Value> {
        let [first, second] = [0, 1].map(|at| {
            let lines = self.scrapes[at].lines().filter(|line| !line.starts_with('#'));
            lines.map(|line| line.rsplit_once(' ').unwrap()).collect::<BTreeMap<_, _>>()
        });
        let names: BTreeSet<_> = first.keys().chain(second.keys()).collect();
        let series = |name: &&&str| {
            let [before, after] = [&first, &second].map(|of| of.get(**name).unwrap_or(&"_"));
            let (family, labels) = name.split_once('{').unwrap_or((name, "}"));
            let labelled = format!("{family}{{instance=\"n1\",{labels}").replace(",}", "}");
            let values = [*before; 2].into_iter().chain([*after; 4]);
            json!({ "series": labelled, "values": values.collect::<Vec<_>>().join(" ") })
        };
        names.iter().map(series).collect()
    }

    /// Asks everything that dashboards ask, and has answers but to what panels of these titles ask.
    fn assert_shown(&self, empty: &[&str]) {
        for title in empty {
            assert!(queries().iter().any(|(of, _)| of == title), "there is no panel {title:?}");
        }
        assert_answered(&self.series(), |title| Some(!empty.contains(&title)));
    }
}

/// Asks these series what dashboards ask; by the panel's title there is an answer or none, or it is
/// not asked. A number that is none (nothing by nothing) is no answer.
fn assert_answered(series: &[Value], is_there: impl Fn(&str) -> Option<bool>) {
    let asked = queries().into_iter().filter_map(|(title, query)| {
        let is_there = is_there(&title)?;
        let expr = format!("# {title}\n(count(({query}) > -Inf) > bool 0) or vector(0)");
        let found = json!({ "labels": "{}", "value": u8::from(is_there) });
        Some(json!({ "expr": expr, "eval_time": "5m", "exp_samples": [found] }))
    });
    let tests = json!({ "rule_files": [], "evaluation_interval": "1m", "tests": [{
        "interval": "1m", "input_series": series, "promql_expr_test": asked.collect::<Vec<_>>(),
    }] });
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("shown.yml");
    fs::write(&file, tests.to_string()).unwrap();
    promtool(&["test", "rules", file.to_str().unwrap()], "");
}

/// Zeros that stand for "none" are told of daemons that answer.
#[test]
fn stopped_daemon_shows_no_healthy_panel() {
    assert_answered(&[json!({ "series": "up{job=\"forebay\"}", "values": "0x9" })], |_| {
        Some(false)
    });
}

/// GPUs on which a job computes are on the node's dashboard and on the job's; whose job it is
/// nobody need know for the first.
#[test]
fn gpus_are_shown() {
    let gpu = |family: &str, more: &str| {
        let series = format!(
            "forebay_gpu_{family}{{instance=\"n1\",gpu=\"0\",UUID=\"GPU-0\",device=\"nvidia0\"{more}}}"
        );
        json!({ "series": series, "values": "1x9" })
    };
    let nameless = vec![
        json!({ "series": "forebay_gpu_driver_up{instance=\"n1\"}", "values": "1x9" }),
        gpu("up", ""),
        gpu("sm_utilization_ratio", ""),
        gpu("jpeg_utilization_ratio", ",engine=\"0\""),
        gpu("jpeg_utilization_ratio", ",engine=\"1\""),
        gpu("pcie_bytes_per_second", ",direction=\"in\""),
        gpu("pcie_bytes_per_second", ",direction=\"out\""),
        gpu("memory_bytes", ""),
        gpu("memory_used_bytes", ""),
    ];
    let of_jobs = |title: &str| title.contains("{{job}}");
    let asked = |title: &str| NO_GPUS.contains(&title);
    assert_answered(&nameless, |title| asked(title).then(|| !of_jobs(title)));
    let ranks = ["1", "2"].map(|rank| format!(",job=\"resnet\",session=\"{rank}\",tenant=\"\""));
    let ranks = ranks.map(|labels| gpu("job_info", &labels));
    let named: Vec<_> = nameless.into_iter().chain(ranks).collect();
    assert_answered(&named, |title| asked(title).then_some(true));
}

/// Scraped without the token: what names a job or stands beside a quota is empty, not the sum of
/// all under a name that is the scrape's own.
#[test]
fn anonymous_metrics_are_shown_without_names() {
    let series = |name: &str, values: &str| {
        let labelled = match name.split_once('{') {
            Some((family, labels)) => format!("{family}{{instance=\"n1\",job=\"forebay\",{labels}"),
            None => format!("{name}{{instance=\"n1\",job=\"forebay\"}}"),
        };
        json!({ "series": labelled, "values": values })
    };
    let nameless = [
        series("forebay_build_info{release=\"1\"}", "1x9"),
        series("forebay_jobs", "8x9"),
        series("forebay_node_wait_seconds_total{cause=\"origin\"}", "0+60x9"),
        series("forebay_consumer_waiting_seconds", "9x9"),
        series("forebay_prefetch_slack_seconds", "9x9"),
        series("forebay_job_slab_bytes", "9x9"),
        series("forebay_job_slab_leased_bytes", "9x9"),
        series("forebay_job_slab_batches", "9x9"),
        series("forebay_dataset_used_bytes", "9x9"),
        series("forebay_tenant_used_bytes", "9x9"),
        series("forebay_tenant_shards", "9x9"),
    ];
    let of_somebody =
        |title: &str| ["{{job}}", "{{dataset}}", "{{tenant}}"].iter().any(|of| title.contains(of));
    let of_all = ["Jobs", "Waits by cause {{cause}}", "Prefetch slack {{instance}}"];
    assert_answered(&nameless, |title| match title {
        "Waits for a batch now" | "Closest to its quota" => Some(false),
        title if of_somebody(title) => Some(false),
        title => of_all.contains(&title).then_some(true),
    });
}

/// Nothing was asked of it yet: nothing is wrong, and that is said.
#[test]
fn idle_daemon_shows_healthy_panels() {
    let mut node = Scraped::new("");
    node.scrape(0, 0);
    node.scrape(0, 0);
    let said = [
        "Jobs",
        "From origins",
        "Devices that are not well",
        "Wrong copies, 24 h",
        "Endpoints and mounts that do not answer",
        "Ranks",
        "Held {{instance}} {{tier}}",
    ];
    for title in said {
        assert!(queries().iter().any(|(of, _)| of == title), "there is no panel {title:?}");
    }
    assert_answered(&node.series(), |title| said.contains(&title).then_some(true));
}

/// A node that reads from file systems alone: no endpoint is known, so nothing is told of any.
#[test]
fn daemon_serving_files_fills_its_panels() {
    let mut node = Scraped::new("");
    let files = node.files(4);
    let first = node.loader(job_with(BTreeMap::new(), files[..2].to_vec()));
    let second = node.loader(job_with(BTreeMap::new(), files[2..].to_vec()));
    for epoch in 0..2 {
        let both = if epoch == 0 { &[&first][..] } else { &[&first, &second][..] };
        both.iter().for_each(|loader| drop(play(loader, epoch, 0).unwrap()));
        node.scrape(both.len(), 2 * both.len());
    }
    node.assert_shown(&[NO_TROUBLE, NO_GPUS, NO_ENDPOINTS, NO_QUOTAS].concat());
}

/// A node that reads from a store and from files, for data sets and tenants that have quotas.
#[test]
fn busy_daemon_fills_every_panel() {
    let origin = Origin::with_shards(4, SAMPLES, &SIZES);
    let gid = rustix::process::getegid().as_raw();
    let rest = format!(
        "{}[[dataset]]\nname = 'faces'\nmatch = '**'\nquota = {{ max = '512MiB' }}\n\
         [[tenant]]\nname = 'vision'\ngroups = [{gid}]\nquota = {{ max = '512MiB' }}\n",
        origin.rule()
    );
    let mut node = Scraped::new(&rest);
    let files = node.files(2);
    let urls = Origin::urls(4);
    let jobs = [
        job(&origin, urls[..2].to_vec()),
        job(&origin, urls[2..].to_vec()),
        job_with(BTreeMap::new(), files),
    ];
    let loaders = jobs.map(|open| node.loader(open));
    play(&loaders[0], 0, 0).unwrap();
    node.scrape(1, 2);
    for loader in &loaders {
        play(loader, 1, 0).unwrap();
    }
    node.scrape(3, 6);
    node.assert_shown(&[NO_TROUBLE, NO_GPUS].concat());
}
