//! A daemon's state as lines of a terminal: what the status page shows, in its order.
//!
//! Its rule: whoever waits most comes first, and no line is wider than the terminal: names give way before figures.

mod jobs;

use std::cmp::Reverse;

use bytesize::ByteSize;
use console::{Style, measure_text_width, pad_str, truncate_str};
use forebay_api::gpus::GpuReport;
use forebay_api::status::printable;
use serde::Deserialize;
use serde_json::Value;

use jobs::{Named, named};

/// Names are never cut below this.
const NAME_MIN: usize = 12;

/// What stands last is cut by the terminal's edge, but first names give way to so much of it: two causes and their shares.
const LAST_MIN: usize = 26;

/// Waits below this share of the time are not worth a word.
const WORTH_TELLING: f64 = 0.005;

/// A job that waits more than this share of its time starves.
const STARVES: f64 = 0.05;

/// A wait that goes on for more seconds than this is told.
const LONG: f64 = 1.0;

/// A tier that gave more than this share of its capacity to others on its disk has less cache than its admin thinks.
const GIVEN_UP: f64 = 0.1;

/// How a line is to look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Look {
    Plain,
    Head,
    Aside,
    Bad,
}

/// A line that fits the terminal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) text: String,
    pub(super) look: Look,
}

impl Line {
    pub(super) fn fitting(text: &str, look: Look, width: usize) -> Self {
        let text = printable(text);
        Self { text: truncate_str(&text, width, "…").into_owned(), look }
    }

    /// The line with what makes a terminal show it so.
    pub(super) fn styled(&self) -> String {
        let style = match self.look {
            Look::Plain => return self.text.clone(),
            Look::Head => Style::new().bold(),
            Look::Aside => Style::new().dim(),
            Look::Bad => Style::new().red(),
        };
        style.apply_to(&self.text).to_string()
    }
}

/// A status document, the one before it, and how wide the terminal is.
pub(super) struct Screen<'a> {
    pub(super) status: &'a Value,
    pub(super) before: Option<&'a Value>,
    pub(super) width: usize,
}

/// A column: its head, and whether it is aligned to the right.
type Column = (&'static str, bool);

impl Screen<'_> {
    /// All of it; what does not fit the terminal's height is at the end.
    pub(super) fn lines(&self) -> Vec<Line> {
        let mut lines = vec![self.line(Look::Head, &self.figures())];
        let (verdict, is_well) = self.verdict();
        let look = if is_well { Look::Plain } else { Look::Bad };
        lines.extend(verdict.iter().map(|said| self.line(look, said)));
        lines.push(self.line(Look::Aside, &self.coming()));
        if let Some(rates) = self.rates() {
            lines.push(self.line(Look::Aside, &rates));
        }
        self.jobs(&mut lines);
        self.gpus(&mut lines);
        self.tiers(&mut lines);
        self.holdings("DATA SET", "/cache/datasets", &mut lines);
        self.holdings("TENANT", "/cache/tenants", &mut lines);
        self.origins(&mut lines);
        self.mounts(&mut lines);
        self.warm_ups(&mut lines);
        lines
    }

    fn line(&self, look: Look, text: &str) -> Line {
        Line::fitting(text, look, self.width)
    }

    /// That the daemon does not answer.
    pub(super) fn old(&self, why: &str) -> Line {
        // The reason, which may be long, is last.
        let said = "The daemon does not answer; what is shown is old. Trying again.";
        self.line(Look::Bad, &format!("{said} {why}"))
    }

    fn figures(&self) -> String {
        let status = self.status;
        let (jobs, ranks) = (named(status).len(), list(status, "/jobs").len());
        let of_ranks = if jobs == ranks { String::new() } else { format!(", {ranks} ranks") };
        format!(
            "forebay {}  up {}  {jobs} jobs{of_ranks}  cache {} of {}",
            text(status, "/release"),
            time(float(status, "/uptime_seconds").unwrap_or_default()),
            size(status, "/cache/used_bytes"),
            size(status, "/cache/capacity_bytes"),
        )
    }

    /// What is on its way, and what must be soon.
    fn coming(&self) -> String {
        let running = count(self.status, "/fills/running");
        if list(self.status, "/foresight/jobs").is_empty() {
            // What links bring was not looked at for them either.
            let unknown = match list(self.status, "/jobs").is_empty() {
                true => "",
                false => "; of no job it is known what it reads next",
            };
            return format!("{running} shards on their way{unknown}");
        }
        let next = match float(self.status, "/foresight/slack") {
            None => "nothing more is to come".to_owned(),
            Some(slack) if slack < 0.0 => format!("the next fetch is {} late", time(-slack)),
            Some(slack) => format!("the next fetch begins within {}", time(slack)),
        };
        let bandwidth = size(self.status, "/foresight/bandwidth");
        format!("{running} shards on their way; {next}; links bring {bandwidth}/s")
    }

    /// What matters first, a line each, and whether all is well.
    fn verdict(&self) -> (Vec<String>, bool) {
        let status = self.status;
        let jobs = named(status);
        let mut said = waits(&jobs);
        for origin in list(status, "/sources").iter().filter(|one| is(one, "/down")) {
            said.push(format!("{} does not answer.", text(origin, "/endpoint")));
        }
        for mount in list(status, "/mounts").iter().filter(|one| is(one, "/hangs")) {
            let (mount, stuck) = (text(mount, "/mount"), list(mount, "/stuck").len());
            said.push(format!("{mount} hangs; readers stuck there: {stuck}."));
        }
        said.extend(remedy(status));
        for tier in list(status, "/tiers") {
            // Whoever disabled it knows.
            if text(tier, "/condition") != "normal" && text(tier, "/mode") != "disabled" {
                said.push(format!("Tier {} is {}.", text(tier, "/name"), text(tier, "/condition")));
            }
            let least = (1.0 - GIVEN_UP) * float(tier, "/capacity_bytes").unwrap_or_default();
            if let Some(limit) = float(tier, "/limit_bytes").filter(|limit| *limit < least) {
                let (name, limit) = (text(tier, "/name"), bytes_of(limit));
                said.push(format!("Others fill the disk of tier {name}: it may hold {limit} now."));
            }
        }
        if status.pointer("/configuration/drift").is_some_and(|drift| !drift.is_null()) {
            let what =
                "The configuration's file differs from what is in force: forebay config diff.";
            said.push(what.to_owned());
        }
        match said.is_empty() {
            true if jobs.is_empty() => (vec!["No job is connected.".to_owned()], true),
            true => (vec!["No job waits for data.".to_owned()], true),
            false => (said, false),
        }
    }

    /// What came and went between two looks, a second.
    fn rates(&self) -> Option<String> {
        let (before, now) = (self.before?, self.status);
        let seconds = float(now, "/uptime_seconds")? - float(before, "/uptime_seconds")?;
        if seconds <= 0.0 {
            // Another daemon answers.
            return None;
        }
        let rate = |paths: &[&str], what: &str| {
            let of = |status| paths.iter().map(|path| count(status, path)).sum::<u64>();
            let bytes = of(now).saturating_sub(of(before)) as f64 / seconds;
            format!("{}/s {what}", bytes_of(bytes))
        };
        let rates = [
            // What no tier takes comes from origins, too.
            rate(&["/cache/origin_bytes", "/cache/through_bytes"], "fetched"),
            rate(&["/cache/tier_read_bytes"], "read from tiers"),
            rate(&["/cache/copied_bytes"], "served while arriving"),
            rate(&["/cache/written_bytes"], "written"),
        ];
        Some(rates.join(", "))
    }

    fn gpus(&self, lines: &mut Vec<Line>) {
        let told = self.status.pointer("/gpus").map(GpuReport::deserialize);
        let Some(Ok(told)) = told else { return };
        if let Some(why) = &told.failing {
            lines.push(self.line(Look::Bad, &format!("GPUs cannot be read: {why}")));
        }
        if told.devices.is_empty() {
            return;
        }
        let columns = [
            ("GPU", false),
            ("SM", true),
            ("JPEG", true),
            ("PCIE IN", true),
            ("MEMORY", true),
            ("JOBS", false),
        ];
        let rows = told.devices.iter().map(|gpu| {
            let activity = &gpu.activity;
            let share = |share: Option<f64>| share.map_or("-".into(), percent);
            let rate = activity.pcie_in_bytes_per_second;
            let memory = activity.memory_used_bytes.zip(activity.memory_bytes);
            let memory = memory.map(|(used, all)| used as f64 / all.max(1) as f64);
            let jobs = gpu.jobs.iter().map(|job| job.name.clone());
            let others =
                (gpu.other_processes > 0).then(|| format!("{} others", gpu.other_processes));
            let by: Vec<_> = gpu.failing.clone().into_iter().chain(jobs).chain(others).collect();
            vec![
                format!("{} {}", gpu.identity.index, gpu.identity.model),
                share(activity.sm_share),
                share(activity.jpeg_share()),
                rate.map_or("-".into(), |rate| format!("{}/s", bytes_of(rate))),
                share(memory),
                by.join(", "),
            ]
        });
        let mut table = self.table(&columns, &rows.collect::<Vec<_>>()).into_iter();
        lines.extend(table.by_ref().take(2));
        lines.extend(told.devices.iter().zip(table).map(|(gpu, line)| {
            let is_well = gpu.failing.is_none() && told.failing.is_none();
            Line { look: if is_well { Look::Plain } else { Look::Bad }, ..line }
        }));
    }

    fn tiers(&self, lines: &mut Vec<Line>) {
        let columns =
            [("TIER", false), ("HOLDS", false), ("FULL", true), ("HITS", true), ("DEVICE", false)];
        let tiers = list(self.status, "/tiers");
        let rows = tiers.iter().map(|tier| {
            let (hits, misses) = (count(tier, "/hits"), count(tier, "/misses"));
            let share = |part: u64, whole: u64| match whole {
                0 => "-".to_owned(),
                _ => percent(part as f64 / whole as f64),
            };
            let device = ["/condition", "/mode", "/why", "/device"].map(|path| maybe(tier, path));
            let trouble = [("/corruptions", "corruptions"), ("/io_errors", "I/O errors")];
            let trouble = trouble.iter().filter(|(path, _)| count(tier, path) > 0);
            let trouble = trouble.map(|(path, what)| format!("{} {what}", count(tier, path)));
            let others = (count(tier, "/limit_bytes") < count(tier, "/capacity_bytes"))
                .then(|| float(tier, "/limit_bytes"))
                .flatten()
                .map(|limit| format!("others fill the disk: it may hold {} now", bytes_of(limit)));
            let device: Vec<_> =
                device.into_iter().flatten().chain(trouble).chain(others).collect();
            vec![
                format!("{} ({})", text(tier, "/name"), text(tier, "/class")),
                format!("{} of {}", size(tier, "/used_bytes"), size(tier, "/capacity_bytes")),
                share(count(tier, "/used_bytes"), count(tier, "/capacity_bytes")),
                share(hits, hits + misses),
                device.join(", "),
            ]
        });
        let rows: Vec<_> = rows.collect();
        let mut table = self.table(&columns, &rows).into_iter();
        lines.extend(table.by_ref().take(2));
        lines.extend(tiers.iter().zip(table).map(|(tier, line)| {
            let is_well = text(tier, "/condition") == "normal";
            Line { look: if is_well { Look::Plain } else { Look::Bad }, ..line }
        }));
    }

    /// What of the cache whose is; without rules all of it is the rest's, which says nothing.
    fn holdings(&self, what: &'static str, path: &str, lines: &mut Vec<Line>) {
        let mut holdings = list(self.status, path);
        if holdings.len() < 2 {
            return;
        }
        holdings.sort_by_key(|one| Reverse(count(one, "/used_bytes")));
        let columns = [(what, false), ("HOLDS", false), ("SHARDS", true), ("GIVEN UP BY", false)];
        let columns = if what == "TENANT" { &columns[..3] } else { &columns[..] };
        let rows = holdings.iter().map(|one| {
            let most = one.get("max_bytes").filter(|most| !most.is_null());
            let most = most.map(|_| format!(" of {}", size(one, "/max_bytes")));
            let mut cells = vec![
                text(one, "/name"),
                format!("{}{}", size(one, "/used_bytes"), most.unwrap_or_default()),
                count(one, "/shards").to_string(),
            ];
            if what != "TENANT" {
                cells.push(match text(one, "/cache").as_str() {
                    "always" => text(one, "/evict"),
                    other => format!("cached: {other}"),
                });
            }
            cells
        });
        lines.extend(self.table(columns, &rows.collect::<Vec<_>>()));
    }

    fn origins(&self, lines: &mut Vec<Line>) {
        let origins = list(self.status, "/sources");
        if origins.is_empty() {
            return;
        }
        let columns = [("ORIGIN", false), ("BROUGHT", true), ("UNDER WAY", true), ("STATE", false)];
        let rows = origins.iter().map(|origin| {
            let state = match is(origin, "/down") {
                true => "taken to be down".to_owned(),
                false => format!(
                    "{} wait, {} asked again",
                    count(origin, "/waiting"),
                    count(origin, "/retries")
                ),
            };
            vec![
                text(origin, "/endpoint"),
                size(origin, "/bytes"),
                format!("{} of {}", count(origin, "/under_way"), count(origin, "/limit")),
                state,
            ]
        });
        let mut table = self.table(&columns, &rows.collect::<Vec<_>>()).into_iter();
        lines.extend(table.by_ref().take(2));
        lines.extend(origins.iter().zip(table).map(|(origin, line)| Line {
            look: if is(origin, "/down") { Look::Bad } else { Look::Plain },
            ..line
        }));
    }

    /// File systems that shards are read from.
    fn mounts(&self, lines: &mut Vec<Line>) {
        let mounts = list(self.status, "/mounts");
        if mounts.is_empty() {
            return;
        }
        let columns = [("MOUNT", false), ("READERS", true), ("STUCK", true), ("STATE", false)];
        let rows = mounts.iter().map(|mount| {
            let readers = |path: &str| list(mount, path).len().to_string();
            let state = if is(mount, "/hangs") { "hangs" } else { "answers" };
            vec![text(mount, "/mount"), readers("/readers"), readers("/stuck"), state.to_owned()]
        });
        let mut table = self.table(&columns, &rows.collect::<Vec<_>>()).into_iter();
        lines.extend(table.by_ref().take(2));
        lines.extend(mounts.iter().zip(table).map(|(mount, line)| Line {
            look: if is(mount, "/hangs") { Look::Bad } else { Look::Plain },
            ..line
        }));
    }

    fn warm_ups(&self, lines: &mut Vec<Line>) {
        let running = list(self.status, "/warm_ups");
        let running: Vec<_> = running.into_iter().filter(|warm| !is(warm, "/done")).collect();
        if running.is_empty() {
            return;
        }
        let columns =
            [("WARM-UP", false), ("SHARDS HERE", true), ("FETCHED", true), ("FAILED", true)];
        let rows = running.iter().map(|warm| {
            let here = count(warm, "/fetched") + count(warm, "/cached");
            vec![
                text(warm, "/number"),
                format!("{here} of {}", count(warm, "/shards")),
                size(warm, "/bytes"),
                count(warm, "/failed").to_string(),
            ]
        });
        lines.extend(self.table(&columns, &rows.collect::<Vec<_>>()));
    }

    /// An empty line, a head, and a line for each row. The first column gives way to the others, down to a few letters.
    fn table(&self, columns: &[Column], rows: &[Vec<String>]) -> Vec<Line> {
        let width = |at: usize| {
            let cells = rows.iter().map(|row| measure_text_width(&printable(&row[at])));
            cells.chain([measure_text_width(columns[at].0)]).max().unwrap_or(0)
        };
        let last = columns.len() - 1;
        let mut widths: Vec<_> = (0..columns.len()).map(width).collect();
        // What stands last may be cut by the terminal's edge.
        let gaps = 2 * last;
        let others: usize =
            widths[1..last].iter().sum::<usize>() + gaps + widths[last].min(LAST_MIN);
        let name = self.width.saturating_sub(others).max(NAME_MIN).min(widths[0]);
        widths[0] = name;
        let row = |cells: &mut dyn Iterator<Item = &str>| {
            let cells =
                cells.zip(columns).zip(&widths).map(|((cell, (_, to_the_right)), width)| {
                    let align = if *to_the_right {
                        console::Alignment::Right
                    } else {
                        console::Alignment::Left
                    };
                    pad_str(&printable(cell), *width, align, Some("…")).into_owned()
                });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        let mut lines = vec![Line { text: String::new(), look: Look::Plain }];
        let head = row(&mut columns.iter().map(|(head, _)| *head));
        lines.push(self.line(Look::Head, &head));
        for cells in rows {
            let text = row(&mut cells.iter().map(String::as_str));
            lines.push(self.line(Look::Plain, &text));
        }
        lines
    }
}

/// The share of its time that a job waited lately.
fn waited(job: &Value) -> f64 {
    float(job, "/progress/lately/waited_share").unwrap_or_default()
}

/// Seconds that a job has waited by now for the batch to come.
fn waits_now(job: &Value) -> f64 {
    float(job, "/progress/waiting_seconds").unwrap_or_default()
}

/// Whether something is so.
fn is(of: &Value, path: &str) -> bool {
    of.pointer(path).and_then(Value::as_bool).unwrap_or_default()
}

/// What a job waited for lately, the most first.
fn causes(job: &Value) -> Vec<(String, f64)> {
    let causes = job.pointer("/progress/lately/waited_for").and_then(Value::as_object);
    let mut causes: Vec<_> = causes
        .into_iter()
        .flatten()
        .filter_map(|(cause, share)| Some((cause.replace('_', " "), share.as_f64()?)))
        .filter(|(_, share)| *share >= WORTH_TELLING)
        .collect();
    causes.sort_by(|one, other| other.1.total_cmp(&one.1));
    causes
}

/// What is to be said of jobs that wait.
fn waits(jobs: &[Named<'_>]) -> Vec<String> {
    let mut said = Vec::new();
    let waiting: Vec<_> = jobs.iter().filter(|job| job.is_waiting()).collect();
    // Whoever waits most comes first.
    let Some(first) = waiting.first() else { return said };
    let worst = first.worst();
    let cause = causes(worst).first().map(|(cause, _)| format!(", for {cause} most"));
    let share = (waited(worst) > 0.0).then(|| {
        let (who, share) = (first.who(), percent(waited(worst)));
        format!("; {who} does for {share} of its time{}", cause.unwrap_or_default())
    });
    let (count, all) = (waiting.len(), jobs.len());
    said.push(format!("{count} of {all} jobs wait{}.", share.unwrap_or_default()));
    // What a wait is for is known when it is over.
    let longest = waiting.iter().max_by(|a, b| a.waits_now().total_cmp(&b.waits_now()));
    if let Some(job) = longest.filter(|job| job.waits_now() > LONG) {
        said.push(format!("{} waits now, {} so far.", job.who(), time(job.waits_now())));
    }
    said
}

/// What would let jobs read on.
fn remedy(status: &Value) -> Option<String> {
    let cache = float(status, "/foresight/lacks/cache")
        .map(|bytes| format!("{} more of cache", bytes_of(bytes)));
    let link = float(status, "/foresight/lacks/bandwidth");
    let link = link.map(|rate| format!("{}/s more of link", bytes_of(rate)));
    let more: Vec<_> = cache.into_iter().chain(link).collect();
    (!more.is_empty()).then(|| format!("{} would let jobs read on.", more.join(", or ")))
}

fn list<'v>(of: &'v Value, path: &str) -> Vec<&'v Value> {
    of.pointer(path).and_then(Value::as_array).into_iter().flatten().collect()
}

fn float(of: &Value, path: &str) -> Option<f64> {
    of.pointer(path)?.as_f64()
}

fn count(of: &Value, path: &str) -> u64 {
    float(of, path).unwrap_or_default() as u64
}

fn maybe(of: &Value, path: &str) -> Option<String> {
    match of.pointer(path)? {
        Value::Null => None,
        Value::String(text) => Some(text.clone()),
        other => Some(other.to_string()),
    }
}

fn text(of: &Value, path: &str) -> String {
    maybe(of, path).unwrap_or_else(|| "?".to_owned())
}

fn size(of: &Value, path: &str) -> String {
    bytes_of(float(of, path).unwrap_or_default())
}

fn bytes_of(bytes: f64) -> String {
    ByteSize(bytes as u64).display().iec().to_string()
}

fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

fn time(seconds: f64) -> String {
    match seconds {
        ..10.0 => format!("{seconds:.1} s"),
        ..120.0 => format!("{seconds:.0} s"),
        ..7200.0 => format!("{:.0} min", seconds / 60.0),
        ..172_800.0 => format!("{:.0} h", seconds / 3600.0),
        _ => format!("{:.0} days", seconds / 86_400.0),
    }
}

#[cfg(test)]
mod tests;
