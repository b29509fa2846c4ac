//! docs/METRICS.md, written from the families.

use super::families;
use super::family::{Kind, Together, names_somebody};

const HEAD: &str = "# Metrics

<!-- Written from daemon/admin/src/metrics/; `FOREBAY_WRITE_DOCS=1 cargo test --release --workspace --test metrics` writes it anew. -->

`GET /metrics` on the daemon's socket and, where `http` is configured, over TCP, as OpenMetrics or as Prometheus' older text, whichever is
asked for. How to scrape it, the alert rules and the dashboards: [OPERATING.md](OPERATING.md#what-to-watch).

Whoever is no admin, and whoever asks over TCP without the token, is told nothing by name: labels in *italics* are left out then, and what they
tell apart is told of all together, as the column says.

A sample is there once there is something to count. Sizes are bytes, times seconds. The buckets of all histograms are the same, 50 µs to 300 s.

How many series there are is bounded: beside what the configuration names (tiers, data sets, tenants, and each tenant's data sets) and the node's GPUs
they tell of 256 sessions, one for each rank of a job (`forebay_jobs_untold` counts the others), 256 endpoints and 16 mounts; a label has 128 characters at most. A job that comes again has another `session`, and with it new series: where
many short jobs come and go, scrape without the token.

| name | kind | labels | without names | what it tells |
|---|---|---|---|---|
";

/// The document.
#[must_use]
pub fn document() -> String {
    let mut text = HEAD.to_owned();
    for family in families() {
        let kind = match family.kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let label = |label: &&str| match names_somebody(label) {
            true => format!("*{label}*"),
            false => (*label).to_owned(),
        };
        let labels: Vec<_> = family.labels.iter().map(label).collect();
        let together =
            match (family.labels.iter().any(|label| names_somebody(label)), family.together) {
                (false, _) => "the same",
                (true, Together::Sum) => "sum",
                (true, Together::Most) => "largest",
                (true, Together::Least) => "smallest",
                (true, Together::Untold) => "absent",
            };
        let (labels, help) = (labels.join(", "), family.help);
        text.push_str(&format!(
            "| `{}` | {kind} | {labels} | {together} | {help} |\n",
            family.name
        ));
    }
    text
}
