//! docs/METRICS.md, written from the families.

use super::families;
use super::family::{Kind, Together, names_somebody};

const HEAD: &str = "# Metrics

<!-- Written from daemon/admin/src/metrics/. To regenerate it:
FOREBAY_WRITE_DOCS=1 cargo test --release --workspace --test operations metrics:: -->

`GET /metrics` on the daemon's socket and, if `http` is configured, over TCP. The request's
`Accept` header selects OpenMetrics or Prometheus' older text.
[OPERATING.md](OPERATING.md#monitoring) describes scraping, the alert rules and the dashboards.

A caller that is not an admin, or that comes over TCP without the token, gets no names: labels in
*italics* are left out, and their series are merged as the column *without names* says.

A series appears once there is something to count. Sizes are in bytes, times in seconds. All
histograms have the same buckets, 50 µs to 300 s.

The number of series is bounded. Beside the configured tiers, data sets and tenants (and each
tenant's data sets) and the node's GPUs, there are series for 256 sessions, one for each rank of a
job (`forebay_jobs_untold` counts the others), 256 endpoints and 16 mounts. A label has 128
characters at most. A job that reconnects has another `session`, and with it new series: scrape
without the token where many short jobs come and go.

| name | kind | labels | without names | description |
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
