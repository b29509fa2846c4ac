//! Figures of the contest's document, as text and one by one.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::spread::Spread;

/// Explains the contest's extra work over the epochs before it.
const TOUCHED: &str = "These trainers also read every byte of a batch, unlike those of the epochs: the two numbers of accelerators differ.";

/// Describes the work of the contest's trainers.
pub(crate) fn work(document: &Value) -> String {
    document["model"].as_str().map_or_else(
        || TOUCHED.to_owned(),
        |model| {
            format!("A GPU trains {model}; AU_ideal compares with its step on a batch that is already on the GPU.")
        },
    )
}

/// The contest's figures as text, contenders of one storage below each other: medians, with the
/// lowest and highest round, and what was sustained.
#[must_use]
pub fn table(document: &Value) -> String {
    let mut lines = vec![
        "other loaders, the same work (medians; lowest to highest round)".to_owned(),
        format!("  {}", work(document)),
    ];
    let mut kinds: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for one in document["contenders"].as_array().into_iter().flatten() {
        kinds.entry(level(one)).or_default().push(one);
    }
    for (storage, contenders) in kinds {
        lines.push(format!("  data in: {storage}"));
        lines.extend(contenders.into_iter().map(row));
    }
    lines.extend(without(document).into_iter().map(|one| format!("  {one}")));
    lines.extend(fence(document).map(|within| format!("  {within}")));
    lines.join("\n")
}

/// Lists missing contenders and the reasons: not installed, or out.
pub(crate) fn without(document: &Value) -> Vec<String> {
    let text = |one: &Value, name: &str| one[name].as_str().unwrap_or("?").to_owned();
    let of = |name: &str| document[name].as_array().into_iter().flatten();
    let absent =
        of("absent").map(|one| format!("not there: {}: {}", text(one, "name"), text(one, "why")));
    let out = of("failed").map(|one| {
        format!("out: {} ({}): {}", text(one, "name"), text(one, "doing"), text(one, "why"))
    });
    absent.chain(out).collect()
}

/// Describes the limits on each contender.
pub(crate) fn fence(document: &Value) -> Option<String> {
    let fence = document["fence"].as_object()?;
    let cpus: Vec<_> = fence.get("cpus")?.as_array()?.iter().map(Value::to_string).collect();
    let memory = match fence.get("memory_bytes").and_then(Value::as_u64) {
        Some(bytes) => format!("within {:.1} GB, page cache included", bytes as f64 / 1e9),
        None => "without a limit on memory (--memory)".to_owned(),
    };
    Some(format!("each on CPUs {}, {memory}", cpus.join(", ")))
}

/// Returns the storage tier of a contender's data: only contenders of one tier are compared.
pub(crate) fn level(contender: &Value) -> &'static str {
    match contender["storage"].as_str() {
        Some("page_cache" | "memory") => "memory (page cache, or a tier of memory)",
        Some("small_page_cache") => "a disk, and a page cache that is too small for all of it",
        Some("o_direct") => "a disk (read around the page cache)",
        _ => "not told",
    }
}

/// Text for a contender without a round: the contest ended before its turn.
pub(crate) const NO_ROUND: &str = "no round was run";

fn row(contender: &Value) -> String {
    let name = contender["name"].as_str().unwrap_or("?");
    let mut row = format!("    {name:24}");
    match spread(contender, "samples_per_second") {
        Some(Spread { lowest, median, highest }) => {
            row += &format!("{median:>9.0} samples/s ({lowest:.0} to {highest:.0})");
        }
        None => row += NO_ROUND,
    }
    if let Some(au) = spread(contender, "au_ideal") {
        row += &format!("  AU_ideal {:.1} %", au.median * 100.0);
    }
    if let Some(cpu) = cpu_ms_per_sample(contender) {
        row += &format!("  CPU {:.2} ms/sample", cpu.median);
    }
    if let Some(share) = spread(contender, "cpu_share") {
        row += &format!("  {:.0} % of all", share.median * 100.0);
    }
    if let Some(fed) = fed(contender) {
        row += &format!("  feeds {fed:.2}");
    } else if is_not_borne_out(contender) {
        row += "  feeds: not confirmed by long runs";
    }
    row += &format!("\n        {}", played_as(contender));
    if let Some(first) = first_epoch(contender) {
        row += &format!("\n        first epoch, from cold: {first}");
    }
    row
}

/// Describes a contender's first epoch, with nothing in memory nor in a cache, apart from all
/// rounds.
pub(crate) fn first_epoch(contender: &Value) -> Option<String> {
    let epoch = &contender["first_epoch"];
    let (rate, first) =
        (epoch["samples_per_second"].as_f64()?, epoch["first_batch_seconds"].as_f64()?);
    Some(format!("{rate:.0} samples/s, first batch {first:.2} s"))
}

/// Describes a loader's version, settings and conversion of the shards.
pub(crate) fn played_as(contender: &Value) -> String {
    let mut parts = vec![contender["version"].as_str().unwrap_or("?").to_owned()];
    for (name, value) in contender["configuration"].as_object().into_iter().flatten() {
        // The trainer's checksum is everybody's.
        if name != "crc" {
            parts.push(
                value
                    .as_str()
                    .map_or_else(|| format!("{value} {name}"), |text| format!("{name} by {text}")),
            );
        }
    }
    if let Some(seconds) = contender["conversion_seconds"].as_f64() {
        let made = contender["conversion_bytes"].as_f64();
        let made = made.map_or_else(String::new, |bytes| format!(" to {:.3} GB", bytes / 1e9));
        parts.push(format!("converted beforehand in {seconds:.1} s{made}"));
    }
    parts.join(", ")
}

/// Returns the number of accelerators a contender feeds; `None` if it was not measured, or not
/// confirmed.
pub(crate) fn fed(contender: &Value) -> Option<f64> {
    contender.pointer("/sustained/rate_over_nominal").and_then(Value::as_f64)
}

/// Returns true if a number was searched for and no long run confirmed it.
pub(crate) fn is_not_borne_out(contender: &Value) -> bool {
    contender["sustained"].is_object() && fed(contender).is_none()
}

/// CPU of all that worked for a contender per sample, in milliseconds, over its rounds.
pub(crate) fn cpu_ms_per_sample(contender: &Value) -> Option<Spread> {
    let rounds = contender["rounds"].as_array()?.iter();
    let each = rounds.filter_map(|round| {
        let samples = round["samples"].as_f64().filter(|samples| *samples > 0.0)?;
        Some(round["cpu_seconds"].as_f64()? * 1e3 / samples)
    });
    let each: Vec<_> = each.collect();
    (!each.is_empty()).then(|| Spread::of(each))
}

/// A figure over a contender's rounds, if it has any.
pub(crate) fn spread(contender: &Value, figure: &str) -> Option<Spread> {
    let rounds = contender["rounds"].as_array()?.iter();
    let figures: Vec<_> = rounds.filter_map(|round| round[figure].as_f64()).collect();
    (!figures.is_empty()).then(|| Spread::of(figures))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loaders_are_grouped_by_storage() {
        let rounds = [3.0, 1.0, 2.0].map(|rate| {
            serde_json::json!({
                "samples_per_second": rate * 1e3, "au_ideal": 0.5,
                "cpu_seconds": rate * 0.5, "samples": 1000, "cpu_share": 0.5,
            })
        });
        let one = |name: &str, storage: &str| {
            serde_json::json!({
                "name": name, "storage": storage, "rounds": rounds, "version": "1.2",
                "configuration": { "workers": 4, "decode": "pillow", "crc": "isal" },
                "conversion_seconds": 3.21, "conversion_bytes": 1_234_500_000_u64,
                "first_epoch": { "samples_per_second": 453.3, "first_batch_seconds": 2.594 },
            })
        };
        let document = serde_json::json!({
            "contenders": [one("forebay", "o_direct"), one("other", "page_cache"), one("forebay, memory", "memory")],
            "absent": [{ "name": "dali", "why": "is not installed" }],
            "failed": [{ "name": "spdl", "doing": "sweeping", "why": "was killed" }],
            "fence": { "cpus": [0, 1], "memory_bytes": 14_000_000_000_u64 },
        });
        let text = table(&document);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[2].contains("a disk") && lines[3].contains("forebay"), "{text}");
        assert!(
            lines[6].contains("memory") && lines[7].contains("2000 samples/s (1000 to 3000)"),
            "{text}"
        );
        assert!(lines[7].contains("CPU 1.00 ms/sample  50 % of all"), "{text}");
        assert_eq!(
            lines[8].trim(),
            "1.2, decode by pillow, 4 workers, converted beforehand in 3.2 s to 1.234 GB"
        );
        assert_eq!(lines[9].trim(), "first epoch, from cold: 453 samples/s, first batch 2.59 s");
        assert!(lines[13].contains("dali: is not installed"), "{text}");
        assert!(lines[14].contains("out: spdl (sweeping): was killed"), "{text}");
        assert!(lines[15].contains("each on CPUs 0, 1, within 14.0 GB"), "{text}");
    }

    /// The table of a contest that ended early lists the loaders without a round.
    #[test]
    fn loader_without_a_round_is_listed() {
        let one = serde_json::json!({
            "name": "spdl", "storage": "page_cache", "rounds": [], "version": "0.1",
            "first_epoch": { "samples_per_second": 453.3, "first_batch_seconds": 2.594 },
        });
        let text = table(&serde_json::json!({ "contenders": [one, {}] }));
        assert!(text.contains("spdl                    no round was run\n"), "{text}");
        assert!(text.contains("first epoch, from cold: 453") && text.contains("?"), "{text}");
    }

    #[test]
    fn unconfirmed_rate_is_not_shown_as_a_figure() {
        let told = |sustained| {
            let round = serde_json::json!({ "samples_per_second": 900.0, "au_ideal": 0.91 });
            let one = serde_json::json!({
                "name": "one", "storage": "memory", "rounds": [round], "sustained": sustained
            });
            table(&serde_json::json!({ "contenders": [one] }))
        };
        for rate in [0.98, 0.976_499_9, 0.984_3] {
            let text = told(serde_json::json!({ "rate_over_nominal": rate }));
            assert!(text.contains("feeds 0.98\n"), "{text}");
        }
        let text = told(serde_json::json!({ "rate_over_nominal": null }));
        assert!(text.contains("not confirmed"), "{text}");
        assert!(!told(Value::Null).contains("feeds"));
    }
}
