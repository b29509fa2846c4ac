//! `forebay job`.
//!
//! Rule: `show` adds everything the daemon knows about the cause of the job's waits.

use std::fmt;

use forebay_api::status::{Job, JobLines, Status, is_kept_by_use, why_not};
use forebay_client::Deadline;
use forebay_error::printable;
use forebay_store::Expected;

use super::{ANSWER_TIMEOUT, Change, Done, Failure, Query, print};

/// List connected jobs, show one, or stop one.
#[derive(Debug, clap::Subcommand)]
pub(super) enum Verb {
    /// List connected jobs.
    Ls(Query),
    /// Show one job, and what it waits for.
    ///
    /// If the job announced its order: its first shard that is not cached, the time until it is
    /// needed and the time until it arrives. Also origins and mounts that do not answer.
    Show(Show),
    /// Stop a job: its training script gets an error that says so.
    ///
    /// Its memory and its places in queues are free at once; other jobs are not affected. The
    /// script can resume later from the last state it saved.
    Stop(Stop),
}

#[derive(Debug, clap::Args)]
pub(super) struct Show {
    /// The job's number, as printed by `forebay job ls`.
    number: u64,
    #[command(flatten)]
    query: Query,
}

#[derive(Debug, clap::Args)]
pub(super) struct Stop {
    /// The job's number, as printed by `forebay job ls`.
    number: u64,
    #[command(flatten)]
    change: Change,
}

pub(super) fn run(verb: &Verb) -> Done {
    match verb {
        Verb::Ls(query) => {
            let admin = query.target.admin_if_running()?;
            query.show::<Vec<Job>>(&admin, "/api/v1/jobs", |jobs| jobs.iter().map(text).collect())
        }
        Verb::Show(arguments) => show(arguments),
        Verb::Stop(arguments) => stop(arguments),
    }
}

fn show(Show { number, query }: &Show) -> Done {
    let admin = query.target.admin_if_running()?;
    let path = format!("/api/v1/jobs/{number}");
    if query.output.json {
        return query.show::<Job>(&admin, &path, text);
    }
    let deadline = Deadline::after(ANSWER_TIMEOUT);
    let job: Job = admin.get(&path, &deadline).map_err(Failure::of_request)?;
    let status: Status = admin.get("/api/v1/status", &deadline).map_err(Failure::of_request)?;
    let waits_for = WaitsFor { status: &status, session: *number };
    Ok(print(format!("{}{waits_for}", text(&job)).trim_end())?)
}

fn stop(Stop { number, change }: &Stop) -> Done {
    let admin = change.target.admin_if_running()?;
    let path = format!("/api/v1/jobs/{number}?dry_run={}", change.dry_run);
    let job = admin.delete(&path, &Deadline::after(ANSWER_TIMEOUT));
    let job: Job = job.map_err(Failure::of_request)?;
    let what = if change.dry_run { "would be stopped" } else { "is stopped" };
    change.output.print(&job, |job| format!("{}job {number} {what}", text(job)))
}

fn text(job: &Job) -> String {
    JobLines(job).to_string()
}

/// Causes of a job's present or next wait, as lines of text.
struct WaitsFor<'a> {
    status: &'a Status,
    session: u64,
}

impl fmt::Display for WaitsFor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Status { foresight, sources, mounts, .. } = self.status;
        match foresight.jobs.iter().find(|job| job.job == self.session) {
            None => {
                writeln!(f, "        the job announced no order: its missing shards are unknown")?;
            }
            Some(job) if is_kept_by_use(job) => writeln!(
                f,
                "        its data sets are kept by use: missing shards are unknown in advance"
            )?,
            Some(job) => match &job.lacks {
                None => writeln!(f, "        all shards it needs next are cached")?,
                Some(lacks) => write_lacking(f, lacks)?,
            },
        }
        for source in sources.iter().filter(|source| source.down) {
            writeln!(f, "        {} does not answer", printable(&source.endpoint))?;
        }
        for mount in mounts.iter().filter(|mount| mount.hangs) {
            let path = printable(&mount.mount.to_string_lossy());
            writeln!(f, "        {path} does not answer")?;
        }
        Ok(())
    }
}

/// Writes the first shard that is not cached.
fn write_lacking(f: &mut fmt::Formatter<'_>, lacks: &Expected) -> fmt::Result {
    let (url, needed) = (printable(&lacks.url), lacks.needed_in);
    write!(f, "        its first missing shard: {url}, needed in {needed:.1} s, ")?;
    match lacks.arrives_in {
        Some(arrives) => writeln!(f, "arrives in {arrives:.1} s"),
        None => writeln!(f, "{}", why_not(lacks)),
    }
}

#[cfg(test)]
mod tests {
    use forebay_source::{LinkReport, MountReport};
    use forebay_store::{ForecastReport, ForeseenJob, Refusal};

    use super::*;

    fn foreseen(job: u64, shards: usize, lacks: Option<Expected>) -> ForeseenJob {
        ForeseenJob { job, rate: 0.0, read: 0, waited: 0.0, shards, slack: None, lacks }
    }

    fn lacks(url: &str, needed_in: f64, arrives_in: Option<f64>) -> Expected {
        Expected { url: url.to_owned(), needed_in, arrives_in, refused: None }
    }

    #[test]
    fn job_show_names_the_missing_shard_and_its_cause() {
        let no_room =
            Expected { refused: Some(Refusal::Room), ..lacks("s3://b/\u{1b}[2J.tar", 1.0, None) };
        let source = |endpoint: &str, down| LinkReport {
            endpoint: endpoint.to_owned(),
            down,
            ..LinkReport::default()
        };
        let mount =
            |path: &str, hangs| MountReport { mount: path.into(), hangs, ..MountReport::default() };
        let status = Status {
            foresight: ForecastReport {
                jobs: vec![
                    foreseen(1, 9, Some(lacks("s3://b/1.tar", 0.0, Some(12.25)))),
                    foreseen(2, 9, Some(lacks("s3://b/2.tar", 3.5, None))),
                    foreseen(3, 9, None),
                    foreseen(6, 1, Some(no_room)),
                    foreseen(7, 0, None),
                ],
                ..ForecastReport::default()
            },
            sources: vec![source("https://a", true), source("https://b", false)],
            mounts: vec![mount("/lustre", true), mount("/home", false)],
            ..Status::default()
        };
        let text = |session| WaitsFor { status: &status, session }.to_string();
        let silent = "        https://a does not answer\n        /lustre does not answer\n";
        for (session, words) in [
            (1, "its first missing shard: s3://b/1.tar, needed in 0.0 s, arrives in 12.2 s"),
            (
                2,
                "its first missing shard: s3://b/2.tar, needed in 3.5 s, its origin does not \
                 deliver it",
            ),
            (3, "all shards it needs next are cached"),
            (5, "the job announced no order: its missing shards are unknown"),
            (
                6,
                "its first missing shard: s3://b/\u{fffd}[2J.tar, needed in 1.0 s, there is no \
                 room for it before then: cached shards are needed sooner, or a quota is full",
            ),
            (7, "its data sets are kept by use: missing shards are unknown in advance"),
        ] {
            assert_eq!(text(session), format!("        {words}\n{silent}"));
        }
    }
}
