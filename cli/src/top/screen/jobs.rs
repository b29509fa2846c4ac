//! Jobs by name. Each rank of a job is a session of its own, and a job waits for its slowest rank.
//!
//! A job is one line: the reads of all its ranks, and the waits of the rank that waits most.

use std::collections::BTreeMap;

use forebay_api::status::{Job, SlowSample, Status, is_kept_by_use, why_not};
use forebay_store::{ForeseenJob, Refusal};
use ratatui::style::Style;
use ratatui::text::Line;

use super::Column::{Left, Right};
use super::{LONG, Row, STARVES, Screen, look, percent, rate, time};

/// Share of the time below which a cause is not shown.
const SHOWN_SHARE: f64 = 0.005;

/// Ranks of a job, those that wait most first; at least one.
pub(super) struct NamedJob<'a> {
    ranks: Vec<&'a Job>,
}

/// Returns the jobs of a status, those that wait most first.
pub(super) fn named(status: &Status) -> Vec<NamedJob<'_>> {
    let mut by_name = BTreeMap::<&str, Vec<&Job>>::new();
    for rank in &status.jobs {
        by_name.entry(&rank.name).or_default().push(rank);
    }
    let by_waits = |one: &&Job, other: &&Job| {
        let by_waits = waited_share(other).total_cmp(&waited_share(one));
        by_waits.then(one.session.cmp(&other.session))
    };
    let mut jobs: Vec<_> = by_name
        .into_values()
        .map(|mut ranks| {
            ranks.sort_by(by_waits);
            NamedJob { ranks }
        })
        .collect();
    jobs.sort_by(|one, other| by_waits(&one.worst(), &other.worst()));
    jobs
}

/// Share of its recent time that a job waited.
pub(super) fn waited_share(job: &Job) -> f64 {
    let recent = job.progress.as_ref().and_then(|progress| progress.lately.as_ref());
    recent.map_or(0.0, |recent| recent.waited_share)
}

/// Causes of a job's recent waits, the longest first.
pub(super) fn causes(job: &Job) -> Vec<(String, f64)> {
    let recent = job.progress.as_ref().and_then(|progress| progress.lately.as_ref());
    let causes = recent.into_iter().flat_map(|recent| &recent.waited_for);
    let mut causes: Vec<_> = causes
        .filter(|(_, share)| **share >= SHOWN_SHARE)
        .map(|(cause, share)| (cause.replace('_', " "), *share))
        .collect();
    causes.sort_by(|one, other| other.1.total_cmp(&one.1));
    causes
}

/// Describes waiting jobs, a line each.
pub(super) fn waits(jobs: &[NamedJob<'_>]) -> Vec<String> {
    let waiting: Vec<_> = jobs.iter().filter(|job| job.is_waiting()).collect();
    // The jobs that wait most come first.
    let Some(first) = waiting.first() else { return Vec::new() };
    let worst = first.worst();
    let cause = causes(worst).first().map(|(cause, _)| format!(", mostly for {cause}"));
    let share = (waited_share(worst) > 0.0).then(|| {
        let (who, share) = (first.who(), percent(waited_share(worst)));
        format!("; {who} for {share} of its time{}", cause.unwrap_or_default())
    });
    let (count, all) = (waiting.len(), jobs.len());
    let mut lines = vec![format!("{count} of {all} jobs wait{}.", share.unwrap_or_default())];
    // The cause of a wait is known at its end.
    let longest = waiting.iter().max_by(|a, b| a.waiting_seconds().total_cmp(&b.waiting_seconds()));
    if let Some(job) = longest.filter(|job| job.waiting_seconds() > LONG) {
        lines.push(format!("{} waits now, {} so far.", job.who(), time(job.waiting_seconds())));
    }
    lines
}

impl NamedJob<'_> {
    /// The rank that waits most.
    fn worst(&self) -> &Job {
        self.ranks[0]
    }

    /// Seconds of the longest present wait of its ranks.
    fn waiting_seconds(&self) -> f64 {
        let progress = self.ranks.iter().filter_map(|rank| rank.progress.as_ref());
        progress.map(|progress| progress.waiting_seconds).fold(0.0, f64::max)
    }

    /// Slowest sample of its ranks.
    fn slowest(&self) -> Option<&SlowSample> {
        let of_each = self.ranks.iter().filter_map(|rank| rank.told.slowest.first());
        of_each.max_by(|one, other| one.seconds.total_cmp(&other.seconds))
    }

    fn is_waiting(&self) -> bool {
        waited_share(self.worst()) > STARVES || self.waiting_seconds() > LONG
    }

    /// Names the rank that waits most.
    fn who(&self) -> String {
        let name = &self.worst().name;
        if self.ranks.len() > 1 { format!("a rank of {name}") } else { name.clone() }
    }

    fn cells(&self) -> Vec<String> {
        let worst = self.worst();
        let tenant = worst.tenant.as_ref().map(|tenant| format!(" ({tenant})"));
        let recent: Vec<_> =
            self.ranks.iter().filter_map(|rank| rank.progress.as_ref()?.lately.as_ref()).collect();
        let figure = |text: String| if recent.is_empty() { "-".to_owned() } else { text };
        let samples: f64 = recent.iter().map(|recent| recent.samples_per_second).sum();
        let bytes: f64 = recent.iter().map(|recent| recent.bytes_per_second).sum();
        let has_share = worst.progress.as_ref().is_some_and(|of| of.lately.is_some());
        let share = if has_share { percent(waited_share(worst)) } else { "-".to_owned() };
        let causes = causes(worst).into_iter();
        let causes = causes.map(|(cause, share)| format!("{cause} {}", percent(share)));
        vec![
            format!("{}{}", worst.name, tenant.unwrap_or_default()),
            self.ranks.len().to_string(),
            figure(format!("{samples:.0}")),
            figure(rate(bytes).trim_end_matches("/s").to_owned()),
            share,
            causes.collect::<Vec<_>>().join(", "),
        ]
    }
}

/// The next missing shard of a rank: the time until it is needed, and until it arrives.
struct Horizon {
    is_late: bool,
    needed_in: f64,
    text: String,
}

impl Screen<'_> {
    pub(super) fn jobs(&self) -> Vec<Line<'static>> {
        let rows = named(self.status).into_iter().map(|job| {
            let mut notes = Vec::new();
            if let Some(horizon) = self.horizon(&job) {
                let style = if horizon.is_late { look(false) } else { Style::new().dim() };
                notes.push(self.line(&format!("  {}", horizon.text), style));
            }
            let seconds = job.waiting_seconds();
            if seconds > LONG {
                let text = format!("  waits now, {} so far", time(seconds));
                notes.push(self.line(&text, look(false)));
            }
            if job.is_waiting()
                && let Some(slow) = job.slowest()
            {
                notes.push(self.line(&format!("  slowest: {slow}"), Style::new().dim()));
            }
            let wrong: u64 = job.ranks.iter().map(|rank| rank.wrong_shards).sum();
            if wrong > 0 {
                notes.push(self.line(&format!("  {wrong} shards were corrupt"), look(false)));
            }
            let style = look(waited_share(job.worst()) <= STARVES);
            Row { cells: job.cells(), style, notes }
        });
        let columns = [
            Left("JOB"),
            Right("RANKS"),
            Right("SAMPLES/S"),
            Right("BYTES/S"),
            Right("WAITS"),
            Left("FOR"),
        ];
        self.table(&columns, rows.collect())
    }

    /// Returns the horizon of the rank that stands still first: late shards first, then those
    /// needed first. None if no rank announced its order.
    fn horizon(&self, job: &NamedJob<'_>) -> Option<Horizon> {
        let foreseen = &self.status.foresight.jobs;
        let of = |rank: &&Job| {
            let found = foreseen.iter().find(|of| of.job == rank.session)?;
            Some(Horizon::of(found))
        };
        job.ranks.iter().filter_map(of).min_by(|one, other| {
            let by_lateness = other.is_late.cmp(&one.is_late);
            by_lateness.then(one.needed_in.total_cmp(&other.needed_in))
        })
    }
}

impl Horizon {
    fn of(foreseen: &ForeseenJob) -> Self {
        let lacks = match &foreseen.lacks {
            Some(lacks) if !is_kept_by_use(foreseen) => lacks,
            _ => {
                let text = match is_kept_by_use(foreseen) {
                    true => "kept by use: missing shards are unknown in advance",
                    false => "all shards it needs are cached",
                };
                return Self { is_late: false, needed_in: f64::INFINITY, text: text.to_owned() };
            }
        };
        let (needed_in, arrives) = (lacks.needed_in, lacks.arrives_in);
        let when = match arrives {
            Some(arrives) => format!("arrives in {}", time(arrives)),
            None => why_not(lacks).to_owned(),
        };
        let text = format!("needed in {}, {when}: {}", time(needed_in), lacks.url);
        let has_no_room = lacks.refused == Some(Refusal::Room);
        let is_late = !has_no_room && arrives.is_none_or(|arrives| arrives > needed_in);
        Self { is_late, needed_in, text }
    }
}
