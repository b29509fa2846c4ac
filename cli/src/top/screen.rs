//! A daemon's state as lines of a terminal: the contents of the status page, in the same order.
//!
//! Jobs that wait most come first, and no line is wider than the terminal: names are cut before
//! figures.

mod jobs;

use std::cmp::Reverse;

use bytesize::ByteSize;
use console::{Alignment, measure_text_width, pad_str, truncate_str};
use forebay_api::cluster::{differences, fallbacks, is_well, member_state, own_troubles};
use forebay_api::status::{Status, word};
use forebay_error::printable;
use forebay_store::{Cache, Condition, Counters, Holding, Mode, TierReport};
use ratatui::style::{Style, Stylize};
use ratatui::text::Line;

use self::Column::{Left, Right};
use self::jobs::named;

/// Width below which names are never cut.
const NAME_MIN: usize = 12;

/// Width of the last column for which names are cut: two causes and their shares. The terminal's
/// edge cuts the rest of it.
const LAST_MIN: usize = 26;

/// Share of the time above which a job starves.
const STARVES: f64 = 0.05;

/// Seconds above which a present wait is reported.
const LONG: f64 = 1.0;

/// Members of the cluster that are shown: a large one would fill the screen.
const MEMBERS_SHOWN: usize = 16;

/// Share of its capacity that a tier may lose to other data on its disk before that is reported.
const LOST_SHARE: f64 = 0.1;

/// Cuts text to a width, without control characters.
pub(super) fn fitting(text: &str, width: usize) -> String {
    truncate_str(&printable(text), width, "…").into_owned()
}

/// A line of lesser weight.
pub(super) fn quiet(text: &str) -> Line<'static> {
    Line::from(text.to_owned()).dim()
}

/// Look of a line.
fn look(is_well: bool) -> Style {
    if is_well { Style::new() } else { Style::new().red() }
}

/// A status, the one before it, and the width of the terminal.
pub(super) struct Screen<'a> {
    pub(super) status: &'a Status,
    pub(super) before: Option<&'a Status>,
    pub(super) width: usize,
}

/// Column of a table.
#[derive(Debug, Clone, Copy)]
enum Column {
    Left(&'static str),
    Right(&'static str),
}

impl Column {
    fn head(self) -> &'static str {
        match self {
            Left(head) | Right(head) => head,
        }
    }

    fn align(self) -> Alignment {
        match self {
            Left(_) => Alignment::Left,
            Right(_) => Alignment::Right,
        }
    }
}

/// Row of a table.
struct Row {
    cells: Vec<String>,
    style: Style,
    /// Lines below the row.
    notes: Vec<Line<'static>>,
}

impl Row {
    fn new(cells: Vec<String>, style: Style) -> Self {
        Self { cells, style, notes: Vec::new() }
    }
}

impl Screen<'_> {
    /// Returns all lines; those that do not fit the terminal's height are at the end.
    pub(super) fn lines(&self) -> Vec<Line<'static>> {
        let mut lines = vec![self.line(&self.figures(), Style::new().bold())];
        let (verdict, is_well) = self.verdict();
        lines.extend(verdict.iter().map(|text| self.line(text, look(is_well))));
        lines.push(self.line(&self.fetches(), Style::new().dim()));
        lines.extend(self.rates().map(|rates| self.line(&rates, Style::new().dim())));
        lines.extend(self.jobs());
        lines.extend(self.gpus());
        lines.extend(self.tiers());
        let holdings = &self.status.cache.holdings;
        lines.extend(self.holdings(true, &holdings.datasets));
        lines.extend(self.holdings(false, &holdings.tenants));
        lines.extend(self.origins());
        lines.extend(self.cluster());
        lines.extend(self.mounts());
        lines.extend(self.checkpoints());
        lines.extend(self.warm_ups());
        lines
    }

    fn line(&self, text: &str, style: Style) -> Line<'static> {
        Line::styled(fitting(text, self.width), style)
    }

    /// Line above the screen of a daemon that does not answer.
    pub(super) fn old(&self, why: &str) -> Line<'static> {
        // The reason, which may be long, is last.
        let text = "The daemon does not answer; this is its last state. Trying again.";
        self.line(&format!("{text} {why}"), look(false))
    }

    fn figures(&self) -> String {
        let Status { release, uptime_seconds, cache, .. } = self.status;
        let (jobs, ranks) = (named(self.status).len(), self.status.jobs.len());
        let of_ranks = if jobs == ranks { String::new() } else { format!(", {ranks} ranks") };
        format!(
            "forebay {release}  up {}  {jobs} jobs{of_ranks}  cache {} of {}",
            time(*uptime_seconds),
            size(cache.counters.used_bytes),
            size(cache.counters.capacity_bytes),
        )
    }

    /// Fetches under way, and the time until the next must begin.
    fn fetches(&self) -> String {
        let Status { fills, foresight, jobs, .. } = self.status;
        let running = fills.running;
        if foresight.jobs.is_empty() {
            // The bandwidth of the links is not measured for such jobs either.
            let unknown = if jobs.is_empty() { "" } else { "; no job announced its order" };
            return format!("{running} shards arriving{unknown}");
        }
        let next = match foresight.slack {
            None => "no more fetches are due".to_owned(),
            Some(slack) if slack < 0.0 => format!("the next fetch is {} late", time(-slack)),
            Some(slack) => format!("the next fetch begins within {}", time(slack)),
        };
        let bandwidth = rate(foresight.bandwidth);
        format!("{running} shards arriving; {next}; links bring {bandwidth}")
    }

    /// Returns the most important facts, a line each, and true if all is well.
    fn verdict(&self) -> (Vec<String>, bool) {
        let Status { sources, mounts, foresight, tiers, configuration, .. } = self.status;
        let jobs = named(self.status);
        let mut lines = jobs::waits(&jobs);
        for origin in sources.iter().filter(|origin| origin.down) {
            lines.push(format!("{} does not answer.", origin.endpoint));
        }
        if let Some(cluster) = &self.status.cluster {
            lines.extend(own_troubles(cluster).into_iter().map(|trouble| format!("{trouble}.")));
            let down = cluster.members.iter().filter(|member| member.is_down || member.is_silent);
            match down.count() {
                0 => {}
                down => lines.push(format!("{down} nodes of the cluster do not answer.")),
            }
        }
        for mount in mounts.iter().filter(|mount| mount.hangs) {
            let (path, stuck) = (mount.mount.display(), mount.stuck.len());
            lines.push(format!("{path} hangs; readers stuck there: {stuck}."));
        }
        if let Some(remedy) = &foresight.lacks {
            let cache = remedy.cache.map(|bytes| format!("{} more of cache", size(bytes)));
            let link = remedy.bandwidth.map(|more| format!("{} more of link", rate(more)));
            let more: Vec<_> = cache.into_iter().chain(link).collect();
            if !more.is_empty() {
                lines.push(format!("{} would end the waits.", more.join(", or ")));
            }
        }
        lines.extend(tiers.iter().flat_map(troubles));
        if configuration.as_ref().is_some_and(|of| of.drift.is_some()) {
            let text = "The configuration file differs from the one in force: forebay config diff.";
            lines.push(text.to_owned());
        }
        match lines.is_empty() {
            true if jobs.is_empty() => (vec!["No job is connected.".to_owned()], true),
            true => (vec!["No job waits for data.".to_owned()], true),
            false => (lines, false),
        }
    }

    /// Rates between two looks.
    fn rates(&self) -> Option<String> {
        let (before, now) = (self.before?, self.status);
        let seconds = now.uptime_seconds - before.uptime_seconds;
        if seconds <= 0.0 {
            // Another daemon answers.
            return None;
        }
        let of = |counter: fn(&Counters) -> u64, what: &str| {
            let [now, before] = [now, before].map(|status| counter(&status.cache.counters));
            format!("{} {what}", rate(now.saturating_sub(before) as f64 / seconds))
        };
        let rates = [
            // Shards that no tier takes come from origins, too.
            of(|counters| counters.origin_bytes + counters.through_bytes, "fetched"),
            of(|counters| counters.tier_read_bytes, "read from tiers"),
            of(|counters| counters.copied_bytes, "served while arriving"),
            of(|counters| counters.written_bytes, "written"),
        ];
        Some(rates.join(", "))
    }

    fn gpus(&self) -> Vec<Line<'static>> {
        let Some(report) = &self.status.gpus else { return Vec::new() };
        let failing = report.failing.as_ref();
        let mut lines: Vec<_> = failing
            .map(|why| self.line(&format!("GPUs cannot be read: {why}"), look(false)))
            .into_iter()
            .collect();
        let rows = report.devices.iter().map(|gpu| {
            let activity = &gpu.activity;
            let share = |share: Option<f64>| share.map_or("-".into(), percent);
            let memory = activity.memory_used_bytes.zip(activity.memory_bytes);
            let memory = memory.map(|(used, all)| used as f64 / all.max(1) as f64);
            let jobs = gpu.jobs.iter().map(|job| job.name.clone());
            let others =
                (gpu.other_processes > 0).then(|| format!("{} others", gpu.other_processes));
            let by: Vec<_> = gpu.failing.clone().into_iter().chain(jobs).chain(others).collect();
            let cells = vec![
                format!("{} {}", gpu.identity.index, gpu.identity.model),
                share(activity.sm_share),
                share(activity.jpeg_share()),
                activity.pcie_in_bytes_per_second.map_or("-".into(), rate),
                share(memory),
                by.join(", "),
            ];
            Row::new(cells, look(gpu.failing.is_none() && failing.is_none()))
        });
        let columns = [
            Left("GPU"),
            Right("SM"),
            Right("JPEG"),
            Right("PCIE IN"),
            Right("MEMORY"),
            Left("JOBS"),
        ];
        lines.extend(self.table(&columns, rows.collect()));
        lines
    }

    fn tiers(&self) -> Vec<Line<'static>> {
        let rows = self.status.tiers.iter().map(|tier| {
            let counters = &tier.counters;
            let share = |part: u64, whole: u64| match whole {
                0 => "-".to_owned(),
                _ => percent(part as f64 / whole as f64),
            };
            let (hits, misses) = (counters.hits, counters.misses);
            let count = |count: u64, what: &str| (count > 0).then(|| format!("{count} {what}"));
            let device = [
                Some(word(&tier.condition)),
                Some(word(&tier.mode)),
                tier.why.clone(),
                tier.device.clone(),
                count(counters.corruptions, "corruptions"),
                count(counters.io_errors, "I/O errors"),
                (counters.limit_bytes < counters.capacity_bytes).then(|| {
                    format!("other data fills the disk: limit {} now", size(counters.limit_bytes))
                }),
            ];
            let cells = vec![
                format!("{} ({})", tier.name, word(&tier.class)),
                format!("{} of {}", size(counters.used_bytes), size(counters.capacity_bytes)),
                share(counters.used_bytes, counters.capacity_bytes),
                share(hits, hits + misses),
                device.into_iter().flatten().collect::<Vec<_>>().join(", "),
            ];
            Row::new(cells, look(tier.condition == Condition::Normal))
        });
        let columns = [Left("TIER"), Left("HOLDS"), Right("FULL"), Right("HITS"), Left("DEVICE")];
        self.table(&columns, rows.collect())
    }

    /// Shares of the cache. A single entry would be the whole cache, and is left out.
    fn holdings(&self, are_datasets: bool, all: &[Holding]) -> Vec<Line<'static>> {
        if all.len() < 2 {
            return Vec::new();
        }
        let mut all: Vec<_> = all.iter().collect();
        all.sort_by_key(|one| Reverse(one.used_bytes));
        let rows = all.into_iter().map(|one| {
            let max = one.max_bytes.map(|max| format!(" of {}", size(max))).unwrap_or_default();
            let holds = format!("{}{max}", size(one.used_bytes));
            let mut cells = vec![one.name.clone(), holds, one.shards.to_string()];
            if are_datasets {
                cells.push(match (one.cache, one.evict) {
                    (Some(Cache::Never), _) => "never cached".to_owned(),
                    (_, evict) => evict.map(|evict| evict.name().to_owned()).unwrap_or_default(),
                });
            }
            Row::new(cells, Style::new())
        });
        let rows = rows.collect();
        match are_datasets {
            true => self
                .table(&[Left("DATA SET"), Left("HOLDS"), Right("SHARDS"), Left("EVICTION")], rows),
            false => self.table(&[Left("TENANT"), Left("HOLDS"), Right("SHARDS")], rows),
        }
    }

    fn origins(&self) -> Vec<Line<'static>> {
        let rows = self.status.sources.iter().map(|origin| {
            let state = match origin.down {
                true => "circuit breaker open".to_owned(),
                false => format!("{} waiting, {} retries", origin.waiting, origin.retries),
            };
            let cells = vec![
                origin.endpoint.clone(),
                size(origin.bytes),
                format!("{} of {}", origin.under_way, origin.limit),
                state,
            ];
            Row::new(cells, look(!origin.down))
        });
        let columns = [Left("ORIGIN"), Right("RECEIVED"), Right("REQUESTS"), Left("STATE")];
        self.table(&columns, rows.collect())
    }

    /// Nodes of the cluster: those that are not well first.
    fn cluster(&self) -> Vec<Line<'static>> {
        let Some(cluster) = &self.status.cluster else { return Vec::new() };
        let mut members: Vec<_> = cluster.members.iter().collect();
        members.sort_by_key(|member| is_well(member));
        let rows = members.into_iter().take(MEMBERS_SHOWN).map(|member| {
            let sent = match member.is_self {
                true => format!("{} sent", size(cluster.serving.sent_bytes)),
                false => size(member.received_bytes),
            };
            let mut told: Vec<_> = differences(member);
            let fallbacks = fallbacks(member);
            if !fallbacks.is_empty() {
                told.push(format!("fallbacks: {fallbacks}"));
            }
            let cells =
                vec![member.name.clone(), member_state(member).to_owned(), sent, told.join(", ")];
            Row::new(cells, look(is_well(member)))
        });
        let columns = [Left("NODE"), Left("STATE"), Right("RECEIVED"), Left("TROUBLE")];
        self.table(&columns, rows.collect())
    }

    /// File systems that shards are read from.
    fn mounts(&self) -> Vec<Line<'static>> {
        let rows = self.status.mounts.iter().map(|mount| {
            let state = if mount.hangs { "hangs" } else { "answers" };
            let cells = vec![
                mount.mount.display().to_string(),
                mount.readers.len().to_string(),
                mount.stuck.len().to_string(),
                state.to_owned(),
            ];
            Row::new(cells, look(!mount.hangs))
        });
        let columns = [Left("MOUNT"), Right("READERS"), Right("STUCK"), Left("STATE")];
        self.table(&columns, rows.collect())
    }

    /// Checkpoints that are not published yet.
    fn checkpoints(&self) -> Vec<Line<'static>> {
        let all = self.status.checkpoints.checkpoints.iter();
        let waiting = all.filter(|one| one.level != "published" || one.trouble.is_some());
        let rows = waiting.map(|one| {
            let uploaded = format!("{} of {}", size(one.uploaded_bytes), size(one.bytes));
            let state = one.trouble.clone().unwrap_or_else(|| one.level.clone());
            let cells = vec![one.url.clone(), uploaded, one.files.to_string(), state];
            Row::new(cells, look(one.trouble.is_none()))
        });
        let columns = [Left("CHECKPOINT"), Right("IN THE STORE"), Right("FILES"), Left("STATE")];
        self.table(&columns, rows.collect())
    }

    fn warm_ups(&self) -> Vec<Line<'static>> {
        let running = self.status.warm_ups.iter().filter(|warm| !warm.done);
        let rows = running.map(|warm| {
            let cells = vec![
                warm.number.to_string(),
                format!("{} of {}", warm.fetched + warm.cached, warm.shards),
                size(warm.bytes),
                warm.failed.to_string(),
            ];
            Row::new(cells, Style::new())
        });
        let columns = [Left("WARM-UP"), Right("SHARDS CACHED"), Right("FETCHED"), Right("FAILED")];
        self.table(&columns, rows.collect())
    }

    /// Returns an empty line, a head, and a line for each row; nothing without rows. The first
    /// column is cut for the others, down to a few letters.
    fn table(&self, columns: &[Column], rows: Vec<Row>) -> Vec<Line<'static>> {
        if rows.is_empty() {
            return Vec::new();
        }
        let width = |at: usize| {
            let cells = rows.iter().map(|row| measure_text_width(&printable(&row.cells[at])));
            cells.fold(measure_text_width(columns[at].head()), usize::max)
        };
        let last = columns.len() - 1;
        let mut widths: Vec<_> = (0..columns.len()).map(width).collect();
        let others: usize =
            widths[1..last].iter().sum::<usize>() + 2 * last + widths[last].min(LAST_MIN);
        widths[0] = self.width.saturating_sub(others).max(NAME_MIN).min(widths[0]);
        let text = |cells: &mut dyn Iterator<Item = &str>| {
            let cells = cells.zip(columns).zip(&widths).map(|((cell, column), width)| {
                pad_str(&printable(cell), *width, column.align(), Some("…")).into_owned()
            });
            cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
        };
        let head = text(&mut columns.iter().map(|column| column.head()));
        let mut lines = vec![Line::default(), self.line(&head, Style::new().bold())];
        for Row { cells, style, notes } in rows {
            lines.push(self.line(&text(&mut cells.iter().map(String::as_str)), style));
            lines.extend(notes);
        }
        lines
    }
}

/// Troubles of a tier that is not disabled, a line each.
fn troubles(tier: &TierReport) -> Vec<String> {
    let TierReport { name, condition, mode, counters, .. } = tier;
    let is_ill = *condition != Condition::Normal && *mode != Mode::Disabled;
    let ill = is_ill.then(|| format!("Tier {name} is {}.", word(condition)));
    let least = (1.0 - LOST_SHARE) * counters.capacity_bytes as f64;
    let full = ((counters.limit_bytes as f64) < least).then(|| {
        let limit = size(counters.limit_bytes);
        format!("Other data fills the disk of tier {name}: limit {limit} now.")
    });
    ill.into_iter().chain(full).collect()
}

fn size(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}

fn rate(bytes_per_second: f64) -> String {
    format!("{}/s", size(bytes_per_second as u64))
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
