//! Jobs by their names: each rank of a job is a session of its own, and a job waits for the slowest.
//!
//! Its rule: a job is one line, however many ranks it has: what all of them read, and what the one waits for that waits most.

use std::collections::BTreeMap;

use forebay_api::status::{is_kept_by_use, why_not};
use serde_json::Value;

use super::{
    LONG, Line, Look, STARVES, Screen, bytes_of, causes, count, float, list, percent, text, time,
    waited, waits_now,
};

/// The ranks of a job, whoever waits most first; there is one at least.
pub(super) struct Named<'a> {
    ranks: Vec<&'a Value>,
}

/// The jobs of a status document, whoever waits most first.
pub(super) fn named(status: &Value) -> Vec<Named<'_>> {
    let mut by_name = BTreeMap::<String, Vec<&Value>>::new();
    for rank in list(status, "/jobs") {
        by_name.entry(text(rank, "/name")).or_default().push(rank);
    }
    let by_waits = |one: &&Value, other: &&Value| {
        let by_waits = waited(other).total_cmp(&waited(one));
        by_waits.then(count(one, "/session").cmp(&count(other, "/session")))
    };
    let mut jobs: Vec<_> = by_name
        .into_values()
        .map(|mut ranks| {
            ranks.sort_by(by_waits);
            Named { ranks }
        })
        .collect();
    jobs.sort_by(|one, other| by_waits(&one.worst(), &other.worst()));
    jobs
}

impl Named<'_> {
    /// The rank that waits most.
    pub(super) fn worst(&self) -> &Value {
        self.ranks[0]
    }

    /// How long the rank has waited by now that has waited longest.
    pub(super) fn waits_now(&self) -> f64 {
        self.ranks.iter().map(|rank| waits_now(rank)).fold(0.0, f64::max)
    }

    pub(super) fn is_waiting(&self) -> bool {
        waited(self.worst()) > STARVES || self.waits_now() > LONG
    }

    /// Who it is that waits.
    pub(super) fn who(&self) -> String {
        let name = text(self.worst(), "/name");
        if self.ranks.len() > 1 { format!("a rank of {name}") } else { name }
    }

    /// What all ranks do together; none before one of them said.
    fn sum(&self, path: &str) -> Option<f64> {
        self.ranks.iter().filter_map(|rank| float(rank, path)).reduce(|sum, more| sum + more)
    }

    fn cells(&self) -> Vec<String> {
        let worst = self.worst();
        let tenant = worst.get("tenant").map(|_| format!(" ({})", text(worst, "/tenant")));
        let rate = |path| self.sum(path);
        let told = causes(worst).into_iter();
        let told: Vec<_> =
            told.map(|(cause, share)| format!("{cause} {}", percent(share))).collect();
        vec![
            format!("{}{}", text(worst, "/name"), tenant.unwrap_or_default()),
            self.ranks.len().to_string(),
            rate("/progress/lately/samples_per_second")
                .map_or("-".into(), |rate| format!("{rate:.0}")),
            rate("/progress/lately/bytes_per_second").map_or("-".into(), bytes_of),
            worst.pointer("/progress/lately").map_or("-".into(), |_| percent(waited(worst))),
            told.join(", "),
        ]
    }
}

/// When a rank's next shard that is not here is needed, and when it comes.
struct Horizon {
    is_late: bool,
    needed_in: f64,
    told: String,
}

impl Screen<'_> {
    pub(super) fn jobs(&self, lines: &mut Vec<Line>) {
        let jobs = named(self.status);
        if jobs.is_empty() {
            return;
        }
        let columns = [
            ("JOB", false),
            ("RANKS", true),
            ("SAMPLES/S", true),
            ("BYTES/S", true),
            ("WAITS", true),
            ("FOR", false),
        ];
        let rows: Vec<_> = jobs.iter().map(Named::cells).collect();
        let mut table = self.table(&columns, &rows).into_iter();
        lines.extend(table.by_ref().take(2));
        for (job, line) in jobs.iter().zip(table) {
            let look = if waited(job.worst()) > STARVES { Look::Bad } else { Look::Plain };
            lines.push(Line { look, ..line });
            if let Some(horizon) = self.horizon(job) {
                let look = if horizon.is_late { Look::Bad } else { Look::Aside };
                lines.push(self.line(look, &format!("  {}", horizon.told)));
            }
            let seconds = job.waits_now();
            if seconds > LONG {
                lines.push(self.line(Look::Bad, &format!("  waits now, {} so far", time(seconds))));
            }
            let wrong: u64 = job.ranks.iter().map(|rank| count(rank, "/wrong_shards")).sum();
            if wrong > 0 {
                lines.push(self.line(Look::Bad, &format!("  {wrong} shards turned out wrong")));
            }
        }
    }

    /// Of a job's ranks that told their order the one that will stand first: what is late, then what is needed first.
    fn horizon(&self, job: &Named<'_>) -> Option<Horizon> {
        let foreseen = list(self.status, "/foresight/jobs");
        let of = |rank: &&Value| {
            let session = count(rank, "/session");
            let foreseen = foreseen.iter().find(|of| count(of, "/job") == session)?;
            Some(Horizon::of(foreseen))
        };
        job.ranks.iter().filter_map(of).min_by(|one, other| {
            let by_lateness = other.is_late.cmp(&one.is_late);
            by_lateness.then(one.needed_in.total_cmp(&other.needed_in))
        })
    }
}

impl Horizon {
    fn of(foreseen: &Value) -> Self {
        if is_kept_by_use(foreseen) {
            let told = "kept by its use: what it lacks is not known beforehand".to_owned();
            return Self { is_late: false, needed_in: f64::INFINITY, told };
        }
        let Some(lacks) = foreseen.get("lacks").filter(|lacks| !lacks.is_null()) else {
            let told = "all it needs is here".to_owned();
            return Self { is_late: false, needed_in: f64::INFINITY, told };
        };
        let needed_in = float(lacks, "/needed_in").unwrap_or_default();
        let arrives = float(lacks, "/arrives_in");
        let when = match arrives {
            Some(arrives) => format!("arrives in {}", time(arrives)),
            None => why_not(lacks).to_owned(),
        };
        let told = format!("needed in {}, {when}: {}", time(needed_in), text(lacks, "/url"));
        let has_no_room = text(lacks, "/refused") == "room";
        let is_late = !has_no_room && arrives.is_none_or(|arrives| arrives > needed_in);
        Self { is_late, needed_in, told }
    }
}
