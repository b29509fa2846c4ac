//! `forebay job`.

use forebay_client::Deadline;
use serde_json::Value;

use super::{ANSWER_TIMEOUT, Done, Failure, List, Target, print, print_json};
use crate::status::JobLines;

/// Show the jobs that are connected, or stop one.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// Show every job.
    Ls(List),
    /// Show one job.
    Show(One),
    /// Stop a job: its training script gets an error that says so.
    ///
    /// Its slots and its place in the queues are free at once; other jobs are not touched. The script can
    /// resume later from the last state it saved.
    Stop(Stop),
}

#[derive(Debug, clap::Args)]
pub(super) struct One {
    /// Its number, as `forebay job ls` shows it.
    number: u64,
    #[command(flatten)]
    target: Target,
    /// Print JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
pub(super) struct Stop {
    #[command(flatten)]
    job: One,
    /// Show the job that would be stopped, and let it run.
    #[arg(long)]
    dry_run: bool,
}

pub(super) fn run(verb: &Verb) -> Done {
    match verb {
        Verb::Ls(List { target, json }) => {
            let admin = target.admin_if_running()?;
            let jobs = admin.get("/api/v1/jobs", &Deadline::after(ANSWER_TIMEOUT));
            let jobs: Vec<Value> = jobs.map_err(Failure::of_request)?;
            match json {
                true => Ok(print_json(&jobs)?),
                false => jobs.iter().try_for_each(show),
            }
        }
        Verb::Show(One { number, target, json }) => {
            let admin = target.admin_if_running()?;
            let path = format!("/api/v1/jobs/{number}");
            let job = admin.get(&path, &Deadline::after(ANSWER_TIMEOUT));
            let job: Value = job.map_err(Failure::of_request)?;
            if *json { Ok(print_json(&job)?) } else { show(&job) }
        }
        Verb::Stop(Stop { job: One { number, target, json }, dry_run }) => {
            let admin = target.admin_if_running()?;
            let path = format!("/api/v1/jobs/{number}?dry_run={dry_run}");
            let job = admin.delete(&path, &Deadline::after(ANSWER_TIMEOUT));
            let job: Value = job.map_err(Failure::of_request)?;
            if *json {
                return Ok(print_json(&job)?);
            }
            show(&job)?;
            let what = if *dry_run { "would be stopped" } else { "is stopped" };
            Ok(print(&format!("job {number} {what}"))?)
        }
    }
}

fn show(job: &Value) -> Done {
    Ok(print(JobLines(job).to_string().trim_end())?)
}
