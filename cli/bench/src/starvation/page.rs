//! A report as one page for a browser: figures, pictures, the raw document, and nothing from
//! elsewhere.

mod charts;

use forebay_error::Result;
use maud::{DOCTYPE, Markup, PreEscaped, html};

use super::differential::Differential;
use super::report::text::{few, unbooked_means};
use super::report::{EpochReport, Report};
use super::search::Held;
use crate::contest::{
    NO_ROUND, cpu_ms_per_sample, fed, fence, first_epoch, is_not_borne_out, played_as, spread,
    without, work,
};

const STYLE: &str = include_str!("page/page.css");

/// Bytes of a GB.
const GB: f64 = 1e9;

/// The page, whole.
///
/// # Errors
/// `Invalid` if a figure is no number.
pub fn of(report: &Report) -> Result<String> {
    let title = format!("Starvation: {} on {}", report.profile, report.machine.cpu);
    // Inside a script nothing that begins as a tag or a comment may stand; in JSON `<` is in
    // strings alone.
    let document = report.to_json()?.replace('<', "\\u003c");
    let page = html! {
        (DOCTYPE)
        html lang="en" {
            head {
                meta charset="utf-8";
                meta name="viewport" content="width=device-width, initial-scale=1";
                meta name="color-scheme" content="light dark";
                title { (title) }
                style { (PreEscaped(STYLE)) }
            }
            body {
                header {
                    h1 { "Accelerator starvation: time and causes" }
                    p { (workload(report)) }
                }
                main {
                    (summary(report)?)
                    @for epoch in &report.epochs { (one(epoch)?) }
                    @if let Some(differential) = &report.differential { (parts(differential)) }
                    @if let Some(held) = &report.held { (most(held)?) }
                    @if let Some(contest) = &report.contest { (rivals(contest)?) }
                    (made_of(report))
                }
                // The raw document travels with its page.
                script type="application/json" id="report" { (PreEscaped(document)) }
            }
        }
    };
    Ok(page.into_string())
}

fn workload(report: &Report) -> String {
    let accelerators = match report.configuration.accelerators {
        1 => "one accelerator".to_owned(),
        many => format!("{many} accelerators"),
    };
    format!(
        "{}, {accelerators}, batches of {}, steps of {:.1} ms, {}",
        report.profile,
        report.batch_size,
        report.step_seconds * 1e3,
        if report.configuration.decode { "images decoded" } else { "bytes as they are" }
    )
}

fn summary(report: &Report) -> Result<Markup> {
    Ok(html! {
        section {
            h2 { "Epochs" }
            table {
                thead { tr {
                    th scope="col" { "epoch" }
                    th scope="col" { "AU_ideal" }
                    th scope="col" { "measured" }
                    th scope="col" { "DLIO's formula" }
                    th scope="col" { "samples/s" }
                    th scope="col" { "GB/s" }
                    th scope="col" { "CPU ms/sample" }
                    th scope="col" { "first batch" }
                    th scope="col" { "fetched" }
                    th scope="col" { "read from" }
                    th scope="col" { "stalls" }
                } }
                tbody { @for epoch in &report.epochs { tr {
                    th scope="row" { (epoch.epoch) " (" (epoch.temperature) ")" }
                    td { (percent(epoch.au_ideal)) }
                    td { (percent(epoch.au_measured)) }
                    td { (percent(epoch.au_dlio)) }
                    td { (format!("{:.0}", epoch.samples_per_second)) }
                    td { (format!("{:.3}", epoch.bytes_per_second / GB)) }
                    td { (format!("{:.2}", epoch.cpu_ms_per_sample)) }
                    td { (format!("{:.3} s", epoch.first_batch_seconds)) }
                    td { (format!("{:.3} GB", epoch.fetched_bytes as f64 / GB)) }
                    td { (epoch.by_tier) }
                    td { (epoch.wait.stalls) " of " (epoch.wait.summary.count) }
                } } }
            }
            @if let Some(steps) = report.few_steps() {
                p class="note" { strong { "Beware: " } (few(steps, report.configuration.prefetch)) "." }
            }
            p class="note" {
                "AU_ideal is steps × nominal step time ÷ wall time. What is measured counts the compute time by the clock "
                "instead, which a busy host makes longer. DLIO's formula counts the nominal time, too; of several "
                "accelerators it has the mean. The first step of each accelerator is in none of the three. CPU is that of the "
                "whole epoch, over all of its samples."
            }
            figure {
                (PreEscaped(charts::causes(&report.epochs)?))
                figcaption { "Accelerators' time by use, epoch by epoch. The rest to 100: steps that took longer than their nominal time, on a host with other work." }
            }
        }
    })
}

fn one(epoch: &EpochReport) -> Result<Markup> {
    let wait = &epoch.wait;
    let left_out = epoch.accelerators.iter().map(|one| one.raw.left_out).sum::<u64>();
    Ok(html! {
        section {
            h2 { "Epoch " (epoch.epoch) ", " (epoch.temperature) }
            p {
                "Waits of single steps: p50 " (milliseconds(wait.summary.p50_seconds))
                ", p95 " (milliseconds(wait.summary.p95_seconds)) ", p99 " (milliseconds(wait.summary.p99_seconds))
                ", longest " (milliseconds(wait.summary.max_seconds)) ". Booked " (briefly(wait.summary.total_seconds))
                " of " (briefly(wait.measured_seconds)) " measured; the calls themselves have no cause."
            }
            @if let Some(unbooked) = wait.unbooked_seconds() {
                p class="note" { strong { "Beware: " } (unbooked_means(unbooked)) "." }
            }
            table {
                thead { tr { th scope="col" { "cause" } th scope="col" { "waited" } th scope="col" { "share" } } }
                tbody { @for (cause, seconds) in &wait.summary.by_cause { tr {
                    th scope="row" { (cause) }
                    td { (format!("{seconds:.3} s")) }
                    td { (percent(seconds / wait.summary.total_seconds.max(f64::MIN_POSITIVE))) }
                } } }
            }
            @for one in &epoch.accelerators {
                figure {
                    (PreEscaped(charts::timeline(one)?))
                    figcaption {
                        "Accelerator " (one.rank) ", AU_ideal " (percent(one.au_ideal))
                        ": share of time waited, by cause, and batches ready when one was asked for (line, right)."
                    }
                }
            }
            @if left_out > 0 { p class="note" { (left_out) " later steps are omitted." } }
        }
    })
}

fn parts(differential: &Differential) -> Markup {
    let cold = differential.cold_step_seconds;
    let row = |what: &str, seconds: f64| {
        html! { tr { th scope="row" { (what) } td { (milliseconds(seconds)) } td { (percent(seconds / cold)) } } }
    };
    html! {
        section {
            h2 { "A cold step, by difference" }
            table {
                thead { tr { th scope="col" { "part" } th scope="col" { "time" } th scope="col" { "share" } } }
                tbody {
                    (row("computing (synthetic)", differential.synthetic_step_seconds))
                    (row("prep stall (cached − synthetic)", differential.prep_stall_seconds))
                    (row("fetch stall (cold − cached)", differential.fetch_stall_seconds))
                    (row("charged to origin, peer and index", differential.booked_fetch_seconds))
                }
            }
            p class="note" {
                "The same steps ran three times: on a batch in memory, from the cache, from the origin. "
                "The last row is the same stall measured another way: by the causes of the waits."
            }
        }
    }
}

fn most(held: &Held) -> Result<Markup> {
    Ok(html! {
        section {
            @match held.accelerators {
                Some(fed) => h2 { "This node feeds " (format!("{fed:.2}")) " of them" },
                None if held.cut_off => h2 { "The search for the number of accelerators was cut off" },
                None => h2 { "The number of accelerators this node feeds was not confirmed" },
            }
            p {
                @if held.accelerators.is_none() && !held.cut_off { "Longer trials failed; the last: " }
                (format!("{:.0}", held.samples_per_second)) " samples/s at AU_ideal " (percent(held.au_ideal))
                ", where at least " (percent(held.target)) " was asked for; "
                (format!("{:.0}", held.unlimited_samples_per_second)) " without computation."
            }
            figure {
                (PreEscaped(charts::search(held)?))
                figcaption { "AU_ideal by the number of accelerators whose batches were requested." }
            }
        }
    })
}

fn rivals(contest: &serde_json::Value) -> Result<Markup> {
    let without = without(contest);
    Ok(html! {
        section {
            h2 { "Other loaders, the same work" }
            p class="note" { (work(contest)) }
            @if let Some(within) = fence(contest) { p class="note" { (within) "; medians, with the lowest and highest round." } }
            @for chart in charts::rivals(contest)? { figure {
                (PreEscaped(chart.picture))
                figcaption { (chart.caption) }
            } }
            table {
                thead { tr {
                    th scope="col" { "loader" }
                    th scope="col" { "data in" }
                    th scope="col" { "samples/s" }
                    th scope="col" { "AU_ideal" }
                    th scope="col" { "CPU ms/sample" }
                    th scope="col" { "of all CPUs" }
                    th scope="col" { "feeds" }
                    th scope="col" { "first epoch, from cold" }
                    th scope="col" { "played as" }
                } }
                tbody { @for one in contest["contenders"].as_array().into_iter().flatten() { tr {
                    th scope="row" { (text(&one["name"])) }
                    td { (text(&one["storage"])) }
                    td { (rate(one)) }
                    td { (middle(one, "au_ideal", percent)) }
                    td { (cpu_ms_per_sample(one).map_or_else(String::new, |cpu| format!("{:.2}", cpu.median))) }
                    td { (middle(one, "cpu_share", percent)) }
                    td { (feeds(one)) }
                    td { (first_epoch(one).unwrap_or_default()) }
                    td { (played_as(one)) }
                } } }
            }
            @if !without.is_empty() {
                ul { @for one in &without { li { (one) } } }
            }
        }
    })
}

/// Returns the number of accelerators a contender feeds, if it was measured.
fn feeds(contender: &serde_json::Value) -> String {
    match fed(contender) {
        Some(fed) => format!("{fed:.2}"),
        None if is_not_borne_out(contender) => "not confirmed".to_owned(),
        None => String::new(),
    }
}

/// A contender's samples a second, if it had its turn.
fn rate(contender: &serde_json::Value) -> String {
    match middle(contender, "samples_per_second", |rate| format!("{rate:.0}")) {
        none if none.is_empty() => NO_ROUND.to_owned(),
        told => told,
    }
}

/// The median of a figure over a contender's rounds, and the lowest and highest.
fn middle(contender: &serde_json::Value, figure: &str, tell: impl Fn(f64) -> String) -> String {
    spread(contender, figure).map_or_else(String::new, |spread| {
        format!("{} ({} to {})", tell(spread.median), tell(spread.lowest), tell(spread.highest))
    })
}

fn made_of(report: &Report) -> Markup {
    html! {
        footer {
            p { (report.machine) }
            p { "Configuration " code { (report.configuration_sha256) } }
            p {
                "The raw figures are in this page, as JSON: "
                code { "document.getElementById('report').textContent" }
            }
        }
    }
}

fn text(value: &serde_json::Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

fn milliseconds(seconds: f64) -> String {
    format!("{:.1} ms", seconds * 1e3)
}

/// A time with three digits that say something, however short it is.
fn briefly(seconds: f64) -> String {
    match seconds {
        long if long >= 1.0 => format!("{long:.3} s"),
        short => format!("{:.3} ms", short * 1e3),
    }
}
