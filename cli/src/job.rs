//! `forebay job`.
//!
//! Its rule: of one job that is shown, all that the daemon knows of what it waits for is told with it.

use std::fmt;

use forebay_api::status::{JobLines, is_kept_by_use, printable, why_not};
use forebay_client::Deadline;
use serde_json::Value;

use super::{ANSWER_TIMEOUT, Done, Failure, List, Target, print, print_json};

/// Show the jobs that are connected, or stop one.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// Show every job.
    Ls(List),
    /// Show one job, and what it waits for.
    ///
    /// Its first shard that is not here, when it is needed and when it comes, if the job told its order beforehand; and
    /// endpoints and mounts that do not answer.
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
            if *json {
                return Ok(print_json(&job)?);
            }
            let status = admin.get("/api/v1/status", &Deadline::after(ANSWER_TIMEOUT));
            let status: Value = status.map_err(Failure::of_request)?;
            let waits_for = WaitsFor { status: &status, session: *number };
            Ok(print(format!("{}{waits_for}", JobLines(&job)).trim_end())?)
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

/// What a job waits for, or will, as far as a status document says, as lines of text.
struct WaitsFor<'a> {
    status: &'a Value,
    session: u64,
}

impl fmt::Display for WaitsFor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |path: &str| self.status.pointer(path).and_then(Value::as_array);
        let is = |of: &Value, what: &str| of.get(what).and_then(Value::as_bool).unwrap_or_default();
        let mut foreseen = list("/foresight/jobs").into_iter().flatten();
        match foreseen.find(|of| of.get("job").and_then(Value::as_u64) == Some(self.session)) {
            None => writeln!(
                f,
                "        it told no order beforehand: which shards it lacks is not known"
            )?,
            Some(foreseen) if is_kept_by_use(foreseen) => writeln!(
                f,
                "        what it reads is kept by its use: which shards it lacks is not known beforehand"
            )?,
            Some(foreseen) => match foreseen.get("lacks").filter(|lacks| !lacks.is_null()) {
                None => writeln!(f, "        all that it needs next is here")?,
                Some(lacks) => write_lacking(f, lacks)?,
            },
        }
        for source in list("/sources").into_iter().flatten().filter(|of| is(of, "down")) {
            writeln!(f, "        {} does not answer", text(source, "endpoint"))?;
        }
        for mount in list("/mounts").into_iter().flatten().filter(|of| is(of, "hangs")) {
            writeln!(f, "        {} does not answer", text(mount, "mount"))?;
        }
        Ok(())
    }
}

/// The first shard that is not here.
fn write_lacking(f: &mut fmt::Formatter<'_>, lacks: &Value) -> fmt::Result {
    let seconds = |what: &str| lacks.get(what).and_then(Value::as_f64);
    let needed = seconds("needed_in").unwrap_or_default();
    write!(
        f,
        "        its first shard that is not here: {}, needed in {needed:.1} s, ",
        text(lacks, "url")
    )?;
    match seconds("arrives_in") {
        Some(arrives) => writeln!(f, "arrives in {arrives:.1} s"),
        None => writeln!(f, "{}", why_not(lacks)),
    }
}

fn text(of: &Value, what: &str) -> String {
    of.get(what).and_then(Value::as_str).map_or_else(|| "?".to_owned(), printable)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_a_job_waits_for_is_told_as_far_as_it_is_known() {
        let status = json!({
            "foresight": { "jobs": [
                { "job": 1, "lacks": { "url": "s3://b/1.tar", "needed_in": 0.0, "arrives_in": 12.25 } },
                { "job": 2, "lacks": { "url": "s3://b/2.tar", "needed_in": 3.5 } },
                { "job": 3, "lacks": null }, { "job": 4 }, { "job": 7, "shards": 0 },
                { "job": 6, "shards": 1, "lacks": { "url": "s3://b/\u{1b}[2J.tar", "needed_in": 1.0, "refused": "room" } },
            ] },
            "sources": [{ "endpoint": "https://a", "down": true }, { "endpoint": "https://b", "down": false }],
            "mounts": [{ "mount": "/lustre", "hangs": true }, { "mount": "/home", "hangs": false }],
        });
        let told = |session| WaitsFor { status: &status, session }.to_string();
        let silent = "        https://a does not answer\n        /lustre does not answer\n";
        for (session, words) in [
            (
                1,
                "its first shard that is not here: s3://b/1.tar, needed in 0.0 s, arrives in 12.2 s",
            ),
            (
                2,
                "its first shard that is not here: s3://b/2.tar, needed in 3.5 s, its origin does not give it",
            ),
            (3, "all that it needs next is here"),
            (4, "all that it needs next is here"),
            (5, "it told no order beforehand: which shards it lacks is not known"),
            (
                6,
                "its first shard that is not here: s3://b/\u{fffd}[2J.tar, needed in 1.0 s, it has no room before then: what is here is needed sooner, or a quota is full",
            ),
            (7, "what it reads is kept by its use: which shards it lacks is not known beforehand"),
        ] {
            assert_eq!(told(session), format!("        {words}\n{silent}"));
        }
    }
}
