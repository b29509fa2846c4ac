//! `forebay cost`.

use std::io::Write;

use forebay_api::costs::{CostLine, CostReport, Endurance};
use forebay_client::Deadline;
use forebay_error::{Doing, Error, ErrorKind, Result, printable};
use forebay_wire::message::Cause;

use super::{ANSWER_TIMEOUT, Done, Failure, Query, print, print_json};

/// Show what jobs cost: bytes and requests to stores, bytes of files, bytes written to disks,
/// GPU-seconds lost to waits.
///
/// By job, tenant and data set, since the daemon started, jobs that ended among them. What several
/// jobs use is on the bill of the one that asked first. Prices come from `[prices]` of the
/// configuration; without them there are amounts alone.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    query: Query,
    /// Print sums by job, or by tenant, in place of each job's data sets; or what was written to
    /// each tier.
    #[arg(long, value_enum, conflicts_with = "json")]
    by: Option<By>,
    /// Print CSV: a head, and a row for each job and data set, and for each job's waits. What was
    /// written to each tier, moves between tiers among it, is no job's: `--by tier` has those rows.
    /// A name that a spreadsheet would take for a formula begins with a `'`.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
}

/// Grouping of the sums.
#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum By {
    /// Sums of each job over all its data sets, and its waits.
    Job,
    /// Sums of each tenant's jobs.
    Tenant,
    /// Bytes written to each tier on a disk, and that as capacities per day.
    Tier,
}

/// First characters that make a spreadsheet read a cell as a formula.
const FORMULAS: [char; 8] = ['=', '+', '-', '@', '＝', '＋', '－', '＠'];

pub(super) fn run(arguments: &Arguments) -> Done {
    let admin = arguments.query.target.admin_if_running()?;
    let report = admin.get("/api/v1/costs", &Deadline::after(ANSWER_TIMEOUT));
    let mut report: CostReport = report.map_err(Failure::of_request)?;
    match arguments.by {
        Some(By::Job) => report.lines = std::mem::take(&mut report.by_job),
        Some(By::Tenant) => report.lines = std::mem::take(&mut report.by_tenant),
        Some(By::Tier) if arguments.csv => return Ok(print_table(&wear(&report.endurance))?),
        Some(By::Tier) if report.endurance.is_empty() => {
            return Ok(print("no tier lies on a disk")?);
        }
        Some(By::Tier) => {
            let tiers: Vec<_> = report.endurance.iter().map(Endurance::to_string).collect();
            return Ok(print(&tiers.join("\n"))?);
        }
        None => {}
    }
    match (arguments.query.output.json, arguments.csv) {
        (true, _) => Ok(print_json(&report)?),
        (_, true) => Ok(print_table(&lines(&report))?),
        _ => Ok(print(report.to_string().trim_end())?),
    }
}

/// The lines, and what their columns are. What has no price is an empty cell.
fn lines(report: &CostReport) -> Vec<Vec<String>> {
    let causes = Cause::ALL.map(|cause| format!("gpu_seconds_lost_{}", cause.name()));
    let head = [
        "job",
        "tenant",
        "dataset",
        "requests",
        "origin_bytes",
        "file_bytes",
        "written_bytes",
        "trainers",
        "gpu_seconds_lost",
    ];
    let costs =
        ["cost_egress", "cost_requests", "cost_written", "cost_gpu", "cost_total", "currency"];
    let head = [names(&head), causes.to_vec(), names(&costs)].concat();
    let currency = as_text(report.prices.currency.as_deref());
    let each = report.lines.iter().map(|line| cells(line, &currency));
    [head].into_iter().chain(each).collect()
}

/// Returns the rows of writes by tier. An unknown value is an empty cell.
fn wear(tiers: &[Endurance]) -> Vec<Vec<String>> {
    let head = names(&[
        "tier",
        "written_bytes",
        "capacity_bytes",
        "capacities_per_day",
        "left_today_bytes",
    ]);
    let each = tiers.iter().map(|tier| {
        vec![
            as_text(Some(&tier.tier)),
            tier.written_bytes.to_string(),
            tier.capacity_bytes.to_string(),
            tier.capacities_per_day.map(|times| format!("{times:.3}")).unwrap_or_default(),
            tier.left_today_bytes.map(|bytes| bytes.to_string()).unwrap_or_default(),
        ]
    });
    [head].into_iter().chain(each).collect()
}

fn names(names: &[&str]) -> Vec<String> {
    names.iter().map(|name| (*name).to_owned()).collect()
}

/// Prints rows as CSV.
fn print_table(rows: &[Vec<String>]) -> Result<()> {
    let mut table = csv::Writer::from_writer(Vec::new());
    for row in rows {
        table.write_record(row).map_err(std::io::Error::from).doing("write a table")?;
    }
    let table = table.into_inner().map_err(|_| {
        Error::new(ErrorKind::Invalid, "a table that is written to memory was cut off")
    })?;
    let mut out = std::io::stdout();
    out.write_all(&table).and_then(|()| out.flush()).doing("write to standard output")
}

/// A text that others wrote, as a cell that no spreadsheet takes for a formula.
fn as_text(text: Option<&str>) -> String {
    let text = printable(text.unwrap_or_default());
    // Some spreadsheets skip the space before a formula.
    if text.trim_start().starts_with(FORMULAS) { format!("'{text}") } else { text }
}

fn cells(line: &CostLine, currency: &str) -> Vec<String> {
    let lost = &line.gpu_seconds_lost_by_cause;
    let seconds = |seconds: f64| format!("{seconds:.3}");
    let money =
        |amount: Option<f64>| amount.map(|amount| format!("{amount:.6}")).unwrap_or_default();
    let mut cells = vec![
        as_text(Some(&line.job)),
        as_text(line.tenant.as_deref()),
        as_text(line.dataset.as_deref()),
        line.requests.to_string(),
        line.origin_bytes.to_string(),
        line.file_bytes.to_string(),
        line.written_bytes.to_string(),
        line.trainers.to_string(),
        seconds(line.gpu_seconds_lost),
    ];
    cells.extend(
        Cause::ALL.map(|cause| seconds(lost.get(cause.name()).copied().unwrap_or_default())),
    );
    let cost = &line.cost;
    cells.extend([cost.egress, cost.requests, cost.written, cost.gpu, cost.total].map(money));
    cells.push(currency.to_owned());
    cells
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_a_cell_for_each_column() {
        let line = CostLine { job: "a, \"b\"".into(), requests: 3, ..CostLine::default() };
        let cells = cells(&line, "USD");
        assert_eq!(cells.len(), 9 + Cause::ALL.len() + 6);
        assert_eq!((cells[0].as_str(), cells[3].as_str()), ("a, \"b\"", "3"));
        assert_eq!(
            (cells[9 + Cause::ALL.len()].as_str(), cells.last().map(String::as_str)),
            ("", Some("USD"))
        );
    }

    #[test]
    fn unknown_tier_figures_are_empty_cells() {
        let tier = |capacities_per_day, left_today_bytes| Endurance {
            tier: "nvme".into(),
            written_bytes: 7,
            capacity_bytes: 9,
            capacities_per_day,
            left_today_bytes,
        };
        let rows = wear(&[tier(None, None), tier(Some(0.25), Some(-3))]);
        assert_eq!(rows[1], ["nvme", "7", "9", "", ""]);
        assert_eq!(rows[2], ["nvme", "7", "9", "0.250", "-3"]);
        assert_eq!(rows[0].len(), rows[1].len());
    }

    #[test]
    fn names_are_escaped_against_formulas() {
        for name in ["=1+1", "+1", "-1", "@SUM(A1)", " =1", "＝1"] {
            let line = CostLine {
                job: name.into(),
                tenant: Some(name.into()),
                dataset: Some(name.into()),
                ..CostLine::default()
            };
            assert_eq!(cells(&line, "")[..3], [0; 3].map(|_| format!("'{name}")));
        }
        assert_eq!(as_text(Some("resnet50-a=b")), "resnet50-a=b");
        assert_eq!(as_text(Some("\t=1\r\n")), "\u{fffd}=1\u{fffd}\u{fffd}");
        assert_eq!(as_text(Some("gpj\u{202e}.a")), "gpj\u{fffd}.a");
    }
}
