//! The formats: OpenMetrics, which Prometheus asks for, and Prometheus' own older text, which
//! everything else reads.
//!
//! The library writes the first, with all escapes; the second differs from it in lines
//! that begin with `#` only.

use std::collections::HashMap;
use std::fmt;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::{Registry, Unit};

use super::family::{Family, Kind, Value};
use super::{Scrape, families};

/// A format of a scrape.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Format {
    OpenMetrics,
    Text,
}

impl Format {
    /// The one that whoever sends this `Accept` reads.
    pub(crate) fn accepted(accept: Option<&str>) -> Self {
        let reads = accept.is_some_and(|accept| accept.contains("application/openmetrics-text"));
        if reads { Self::OpenMetrics } else { Self::Text }
    }

    /// Media type.
    pub(crate) fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Text => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

impl Scrape {
    /// The scrape as text.
    ///
    /// # Errors
    /// None: a string takes whatever is written.
    pub(crate) fn into_text(self, format: Format) -> Result<String, fmt::Error> {
        let mut registry = Registry::default();
        registry.register_collector(Box::new(self));
        let mut written = String::new();
        text::encode(&mut written, &registry)?;
        Ok(match format {
            Format::OpenMetrics => written,
            Format::Text => older(&written),
        })
    }
}

impl Collector for Scrape {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for family in families() {
            let (labels, samples) = self.samples(family);
            if samples.is_empty() {
                continue;
            }
            let (name, unit) = parts(family);
            let kind = match family.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
                Kind::Histogram => MetricType::Histogram,
            };
            let mut metric = encoder.encode_descriptor(name, family.help, unit.as_ref(), kind)?;
            for (values, value) in samples {
                if labels.is_empty() {
                    write(&mut metric, family.kind, &value)?;
                    continue;
                }
                let set: Vec<_> = labels.iter().copied().zip(values).collect();
                write(&mut metric.encode_family(&set)?, family.kind, &value)?;
            }
        }
        Ok(())
    }
}

fn write(metric: &mut MetricEncoder<'_>, kind: Kind, value: &Value) -> fmt::Result {
    match (kind, value) {
        (Kind::Counter, Value::Whole(count)) => {
            metric.encode_counter::<NoLabelSet, u64, u64>(count, None)
        }
        (Kind::Counter, Value::Real(count)) => {
            metric.encode_counter::<NoLabelSet, f64, u64>(count, None)
        }
        (Kind::Gauge, Value::Whole(value)) => metric.encode_gauge(value),
        (Kind::Gauge, Value::Real(value)) => metric.encode_gauge(value),
        (Kind::Histogram, Value::Times(times)) => {
            let buckets: Vec<_> = times.buckets().collect();
            metric.encode_histogram::<NoLabelSet>(times.seconds(), times.count(), &buckets, None)
        }
        (Kind::Histogram, _) | (_, Value::Times(_)) => Err(fmt::Error),
    }
}

/// A family's name without what its kind and its unit add, and the unit.
fn parts(family: &Family) -> (&'static str, Option<Unit>) {
    let name = stem(family);
    for unit in [Unit::Bytes, Unit::Seconds] {
        if let Some(name) = name.strip_suffix(unit.as_str()).and_then(|name| name.strip_suffix('_'))
        {
            return (name, Some(unit));
        }
    }
    (name, None)
}

/// A family's name as OpenMetrics has it: that of a counter is told without its ending.
fn stem(family: &Family) -> &'static str {
    family.name.strip_suffix("_total").unwrap_or(family.name)
}

/// OpenMetrics in the older words.
fn older(written: &str) -> String {
    let counters = families().filter(|family| family.kind == Kind::Counter);
    let whole: HashMap<_, _> = counters.map(|family| (stem(family), family.name)).collect();
    let mut text = String::with_capacity(written.len());
    for line in written.lines() {
        let mut words = line.splitn(4, ' ');
        match (words.next(), words.next(), words.next(), words.next()) {
            (Some("#"), Some(what @ ("HELP" | "TYPE")), Some(name), Some(rest)) => {
                let name = whole.get(name).unwrap_or(&name);
                text.extend(["# ", what, " ", name, " ", rest]);
            }
            (Some("#"), ..) => continue,
            _ => text.push_str(line),
        }
        text.push('\n');
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn format_follows_the_accept_header() {
        let prometheus =
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5";
        assert_eq!(Format::accepted(Some(prometheus)), Format::OpenMetrics);
        for other in [None, Some("*/*"), Some("text/plain;version=0.0.4")] {
            assert_eq!(Format::accepted(other), Format::Text);
        }
    }
}
