//! `forebay cost`.

use std::io::Write;

use forebay_client::Deadline;
use forebay_error::{Doing, Error, ErrorKind, Result};
use forebay_wire::message::Cause;

use super::{ANSWER_TIMEOUT, Done, Failure, Target, print, print_json};
use crate::costs::{CostLine, CostReport};

/// Show what jobs cost: bytes and requests to stores, bytes written to disks, GPU-seconds lost to waits.
///
/// By job, tenant and data set, since the daemon started, jobs that ended among them. What several jobs use is on the bill of the
/// one that asked first. Prices come from `[prices]` of the configuration; without them there are amounts alone.
#[derive(Debug, clap::Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    target: Target,
    /// Print CSV: a head, and a row for each job and data set, and for each job's waits.
    #[arg(long, conflicts_with = "json")]
    csv: bool,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: &Arguments) -> Done {
    let admin = arguments.target.admin_if_running()?;
    let report = admin.get("/api/v1/costs", &Deadline::after(ANSWER_TIMEOUT));
    let report: CostReport = report.map_err(Failure::of_request)?;
    match (arguments.json, arguments.csv) {
        (true, _) => Ok(print_json(&report)?),
        (_, true) => Ok(rows(&report)?),
        _ => Ok(print(report.to_string().trim_end())?),
    }
}

/// Prints the lines as CSV. What has no price is an empty cell.
fn rows(report: &CostReport) -> Result<()> {
    let mut table = csv::Writer::from_writer(Vec::new());
    let mut row = |cells: Vec<String>| table.write_record(&cells).map_err(std::io::Error::from);
    let causes = Cause::ALL.map(|cause| format!("gpu_seconds_lost_{}", cause.name()));
    let head = [
        "job",
        "tenant",
        "dataset",
        "requests",
        "origin_bytes",
        "written_bytes",
        "trainers",
        "gpu_seconds_lost",
    ];
    let costs =
        ["cost_egress", "cost_requests", "cost_written", "cost_gpu", "cost_total", "currency"];
    let names = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
    row([names(&head), causes.to_vec(), names(&costs)].concat()).doing("write a table")?;
    let currency = report.prices.currency.clone().unwrap_or_default();
    for line in &report.lines {
        row(cells(line, &currency)).doing("write a table")?;
    }
    let table = table.into_inner().map_err(|_| {
        Error::new(ErrorKind::Invalid, "a table that is written to memory was cut off")
    })?;
    let mut out = std::io::stdout();
    out.write_all(&table).and_then(|()| out.flush()).doing("write to standard output")
}

fn cells(line: &CostLine, currency: &str) -> Vec<String> {
    let lost = &line.gpu_seconds_lost_by_cause;
    let seconds = |seconds: f64| format!("{seconds:.3}");
    let money =
        |amount: Option<f64>| amount.map(|amount| format!("{amount:.6}")).unwrap_or_default();
    let mut cells = vec![
        line.job.clone(),
        line.tenant.clone().unwrap_or_default(),
        line.dataset.clone().unwrap_or_default(),
        line.requests.to_string(),
        line.origin_bytes.to_string(),
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
        assert_eq!(cells.len(), 8 + Cause::ALL.len() + 6);
        assert_eq!((cells[0].as_str(), cells[3].as_str()), ("a, \"b\"", "3"));
        assert_eq!((cells[14].as_str(), cells.last().map(String::as_str)), ("", Some("USD")));
    }
}
