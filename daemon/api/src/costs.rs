//! Costs of jobs: amounts, and their prices.
//!
//! Amounts come first. Prices are applied on request, from the configuration in force then.

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use bytesize::ByteSize;
use forebay_config::Prices;
use forebay_error::printable;
use forebay_store::{Class, TierReport};
use forebay_wire::message::Cause;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Owner of the lines for all jobs together.
const ALL_JOBS: &str = "(all jobs)";

const GIB: f64 = (1_u64 << 30) as f64;

const TIB: f64 = (1_u64 << 40) as f64;

const HOUR: f64 = 3600.0;

/// Nanoseconds by cause, in the order of [`Cause::ALL`].
pub type ByCause = [u64; Cause::ALL.len()];

/// A job's name, and its tenant's.
pub type Whose = (String, Option<String>);

/// Costs of jobs since the daemon started.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CostReport {
    /// Seconds since it did.
    pub seconds: f64,
    /// By which prices.
    pub prices: Prices,
    /// A line for each job and data set that something was fetched of, and one for each job that
    /// waited, the dearest first.
    pub lines: Vec<CostLine>,
    /// The same with a line for each job,
    pub by_job: Vec<CostLine>,
    /// and for each tenant, and for what is no tenant's.
    pub by_tenant: Vec<CostLine>,
    /// All lines together.
    pub total: CostLine,
    /// Bytes written to each tier on a disk.
    pub endurance: Vec<Endurance>,
}

/// Costs of one job.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct CostLine {
    /// The job, by its name; all lines of that name are one job's.
    pub job: String,
    /// The tenant whose job it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tenant: Option<String>,
    /// The data set that was fetched of; none of waits, which are for all that a job reads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dataset: Option<String>,
    /// Requests to stores over a network.
    pub requests: u64,
    /// Payload bytes that they brought.
    pub origin_bytes: u64,
    /// Bytes of files, and of what commands say: no store is paid for them.
    pub file_bytes: u64,
    /// Bytes written to tiers on disks.
    pub written_bytes: u64,
    /// Trainers that waited; one that found its daemon again is counted once, where its process is
    /// known.
    pub trainers: u64,
    /// Seconds that all of them waited for batches together: each is taken to have one GPU.
    pub gpu_seconds_lost: f64,
    /// The same by the cause.
    pub gpu_seconds_lost_by_cause: BTreeMap<String, f64>,
    /// Cost by the configured prices.
    pub cost: Cost,
}

/// Money. What has no price is not there, and not in the total.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct Cost {
    /// For bytes from stores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub egress: Option<f64>,
    /// For requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub requests: Option<f64>,
    /// For bytes written.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub written: Option<f64>,
    /// For GPUs that waited.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpu: Option<f64>,
    /// All of it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total: Option<f64>,
}

/// Wear of a tier's disk by writes.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Endurance {
    /// The tier.
    pub tier: String,
    /// Bytes written to it since the daemon started, moves between tiers among them, which are on
    /// nobody's bill.
    pub written_bytes: u64,
    /// Bytes that it may hold.
    pub capacity_bytes: u64,
    /// Writes per day over the capacity: the unit of drives' ratings (DWPD). None in the first
    /// hour.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub capacities_per_day: Option<f64>,
    /// Bytes that may still be written today without anybody waiting for them, if `writes_per_day`
    /// says so.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub left_today_bytes: Option<i64>,
}

impl CostReport {
    /// Prices and sums up lines, after `uptime`.
    #[must_use]
    pub fn new(
        uptime: Duration,
        prices: Prices,
        mut lines: Vec<CostLine>,
        tiers: &[TierReport],
    ) -> Self {
        lines.retain(CostLine::is_something);
        let mut total = CostLine { job: "(total)".to_owned(), ..CostLine::default() };
        lines.iter().for_each(|line| total.add(line));
        total.cost = Cost::of(&total, &prices);
        let by_job =
            priced(summed(&lines, |line| (line.job.clone(), line.tenant.clone())), &prices);
        let of_all = |line: &CostLine| (ALL_JOBS.to_owned(), line.tenant.clone());
        let by_tenant = priced(summed(&lines, of_all), &prices);
        let lines = priced(lines, &prices);
        let seconds = uptime.as_secs_f64();
        // A directory in memory wears nothing.
        let is_disk = |tier: &&TierReport| tier.path.is_some() && tier.class != Class::Memory;
        let endurance = tiers.iter().filter(is_disk);
        let endurance = endurance.map(|tier| Endurance::of(tier, seconds)).collect();
        Self { seconds, prices, lines, by_job, by_tenant, total, endurance }
    }
}

/// The lines of each of those whom `whose` tells apart, together.
fn summed(lines: &[CostLine], whose: impl Fn(&CostLine) -> Whose) -> Vec<CostLine> {
    let mut sums = BTreeMap::<Whose, CostLine>::new();
    for line in lines {
        sums.entry(whose(line)).or_default().add(line);
    }
    let named = |((job, tenant), sum)| CostLine { job, tenant, ..sum };
    sums.into_iter().map(named).collect()
}

/// The same with what they come to, the dearest first.
fn priced(mut lines: Vec<CostLine>, prices: &Prices) -> Vec<CostLine> {
    for line in &mut lines {
        line.cost = Cost::of(line, prices);
    }
    let money = |line: &CostLine| line.cost.total.unwrap_or_default();
    lines.sort_by(|one, other| {
        let (one_amount, other_amount) = (one.amounts(), other.amounts());
        money(other).total_cmp(&money(one)).then(other_amount.cmp(&one_amount))
    });
    lines
}

impl CostLine {
    fn is_something(&self) -> bool {
        self.has_bytes() || self.trainers > 0
    }

    fn has_bytes(&self) -> bool {
        self.requests + self.origin_bytes + self.file_bytes + self.written_bytes > 0
    }

    /// By what lines are ordered that cost the same.
    fn amounts(&self) -> (u64, u64) {
        ((self.gpu_seconds_lost * 1e3) as u64, self.origin_bytes + self.file_bytes)
    }

    fn add(&mut self, line: &Self) {
        self.requests += line.requests;
        self.origin_bytes += line.origin_bytes;
        self.file_bytes += line.file_bytes;
        self.written_bytes += line.written_bytes;
        self.trainers += line.trainers;
        self.gpu_seconds_lost += line.gpu_seconds_lost;
        for (cause, seconds) in &line.gpu_seconds_lost_by_cause {
            *self.gpu_seconds_lost_by_cause.entry(cause.clone()).or_default() += seconds;
        }
    }
}

impl Cost {
    fn of(line: &CostLine, prices: &Prices) -> Self {
        let egress = prices.egress_per_gib.map(|price| price * line.origin_bytes as f64 / GIB);
        let requests = prices.per_1000_requests.map(|price| price * line.requests as f64 / 1e3);
        let written = prices.per_tib_written.map(|price| price * line.written_bytes as f64 / TIB);
        let gpu = prices.gpu_hour.map(|price| price * line.gpu_seconds_lost / HOUR);
        let parts = [egress, requests, written, gpu];
        let is_priced = parts.iter().any(Option::is_some);
        let total = is_priced.then(|| parts.iter().flatten().sum());
        Self { egress, requests, written, gpu, total }
    }
}

impl Endurance {
    fn of(tier: &TierReport, seconds: f64) -> Self {
        let (written, capacity) = (tier.counters.written_bytes, tier.counters.capacity_bytes);
        let a_day = written as f64 / capacity.max(1) as f64 * 24.0 * HOUR / seconds.max(1.0);
        Self {
            tier: tier.name.clone(),
            written_bytes: written,
            capacity_bytes: capacity,
            // A cold start's first minutes would extrapolate to a frightening rate.
            capacities_per_day: (seconds >= HOUR).then_some(a_day),
            left_today_bytes: tier.writes_left_bytes,
        }
    }
}

/// An amount of money, with its currency if that is known.
fn money(amount: f64, prices: &Prices) -> String {
    format!("{amount:.2} {}", prices.currency.as_deref().unwrap_or_default()).trim_end().to_owned()
}

/// A line of a report as lines of text.
struct Told<'a>(&'a CostLine, &'a Prices);

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(line, prices) = self;
        write!(f, "{}", printable(&line.job))?;
        if let Some(tenant) = &line.tenant {
            write!(f, ", tenant {}", printable(tenant))?;
        }
        if let Some(dataset) = &line.dataset {
            write!(f, ", data set {}", printable(dataset))?;
        }
        if let Some(total) = line.cost.total {
            write!(f, "  {}", money(total, prices))?;
        }
        writeln!(f)?;
        if line.has_bytes() {
            let (fetched, requests) = (size(line.origin_bytes), line.requests);
            let is_remote = requests + line.origin_bytes > 0;
            let parts = [
                is_remote.then(|| format!("fetched {fetched} by {requests} requests")),
                (line.file_bytes > 0)
                    .then(|| format!("read {} from file systems", size(line.file_bytes))),
                (line.written_bytes > 0).then(|| format!("wrote {}", size(line.written_bytes))),
            ];
            writeln!(f, "  {}", parts.into_iter().flatten().collect::<Vec<_>>().join(", "))?;
        }
        if line.trainers > 0 {
            let causes = line.gpu_seconds_lost_by_cause.iter().filter(|(_, s)| **s >= 0.05);
            let told = |(cause, seconds): (&String, &f64)| {
                format!("{} {seconds:.1} s", cause.replace('_', " "))
            };
            let causes: Vec<_> = causes.map(told).collect();
            let by =
                if causes.is_empty() { String::new() } else { format!(": {}", causes.join(", ")) };
            let (trainers, lost) = (line.trainers, line.gpu_seconds_lost);
            writeln!(f, "  {trainers} trainers lost {lost:.1} GPU-seconds{by}")?;
        }
        Ok(())
    }
}

fn size(bytes: u64) -> String {
    ByteSize(bytes).display().iec().to_string()
}

impl fmt::Display for Endurance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (written, capacity) = (size(self.written_bytes), size(self.capacity_bytes));
        write!(f, "tier {}  {written} written, capacity {capacity}", printable(&self.tier))?;
        match self.capacities_per_day {
            Some(a_day) => write!(f, ", {a_day:.2} times its capacity a day"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for CostReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hours = self.seconds / HOUR;
        writeln!(f, "since the daemon's start, {hours:.1} h ago")?;
        for line in self.lines.iter().chain([&self.total]) {
            write!(f, "\n{}", Told(line, &self.prices))?;
        }
        self.endurance.iter().try_for_each(|tier| write!(f, "\n{tier}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(job: &str, origin_bytes: u64, requests: u64, written_bytes: u64) -> CostLine {
        let dataset = Some("d".to_owned());
        CostLine {
            job: job.into(),
            dataset,
            origin_bytes,
            requests,
            written_bytes,
            ..CostLine::default()
        }
    }

    fn waits(job: &str, trainers: u64, seconds: u64) -> CostLine {
        let seconds = seconds as f64;
        let by_cause = BTreeMap::from([(Cause::Origin.name().to_owned(), seconds)]);
        CostLine {
            job: job.into(),
            trainers,
            gpu_seconds_lost: seconds,
            gpu_seconds_lost_by_cause: by_cause,
            ..CostLine::default()
        }
    }

    #[test]
    fn costs_are_amounts_times_prices_with_sums() {
        let prices = Prices {
            currency: Some("EUR".into()),
            egress_per_gib: Some(0.5),
            per_1000_requests: Some(2.0),
            per_tib_written: None,
            gpu_hour: Some(3.0),
        };
        let lines = vec![
            line("a", 1 << 30, 500, 7),
            waits("a", 2, 7200),
            waits("b", 1, 0),
            line("c", 0, 0, 0),
        ];
        let report = CostReport::new(Duration::from_secs(60), prices, lines, &[]);
        let told: Vec<_> =
            report.lines.iter().map(|line| (line.job.as_str(), line.cost.total)).collect();
        // A job without fetches has no line; the most expensive comes first.
        assert_eq!(told, [("a", Some(6.0)), ("a", Some(1.5)), ("b", Some(0.0))]);
        let total = &report.total;
        assert_eq!(
            (total.cost.total, total.cost.gpu, total.cost.written),
            (Some(7.5), Some(6.0), None)
        );
        assert_eq!((total.trainers, total.written_bytes), (3, 7));
        let text = report.to_string();
        assert!(
            text.contains("a, data set d  1.50 EUR") && text.contains("origin 7200.0 s"),
            "{text}"
        );
    }

    #[test]
    fn report_without_prices_has_amounts_only() {
        let lines = vec![line("a", 1 << 30, 500, 7)];
        let report = CostReport::new(Duration::from_secs(60), Prices::default(), lines, &[]);
        assert_eq!(report.total.cost, Cost::default());
        let document = serde_json::to_value(&report).unwrap();
        assert_eq!(document["total"]["cost"], serde_json::json!({}));
        assert_eq!(document["lines"][0]["requests"], 500);
    }

    #[test]
    fn costs_are_summed_by_job_and_by_tenant() {
        let prices = Prices { egress_per_gib: Some(1.0), ..Prices::default() };
        let of = |tenant: &str, line: CostLine| CostLine { tenant: Some(tenant.into()), ..line };
        let lines = vec![
            of("x", line("a", 1 << 30, 1, 0)),
            of("x", CostLine { dataset: Some("e".into()), ..line("a", 1 << 30, 1, 0) }),
            of("x", waits("a", 2, 9)),
            of("y", line("a", 1 << 30, 1, 0)),
            of("x", line("b", 4 << 30, 1, 0)),
            CostLine { file_bytes: 5, ..line("c", 0, 0, 0) },
        ];
        let report = CostReport::new(Duration::ZERO, prices, lines, &[]);
        let told = |lines: &[CostLine]| -> Vec<_> {
            let told = lines.iter().map(|line| {
                assert!(line.dataset.is_none());
                let tenant = line.tenant.clone().unwrap_or_default();
                (format!("{} {tenant}", line.job), line.cost.total, line.trainers)
            });
            told.collect()
        };
        let all = [("b x", 4.0, 0), ("a x", 2.0, 2), ("a y", 1.0, 0), ("c ", 0.0, 0)];
        assert_eq!(told(&report.by_job), all.map(|(who, cost, n)| (who.into(), Some(cost), n)));
        let all = [("(all jobs) x", 6.0, 2), ("(all jobs) y", 1.0, 0), ("(all jobs) ", 0.0, 0)];
        assert_eq!(told(&report.by_tenant), all.map(|(who, cost, n)| (who.into(), Some(cost), n)));
        assert_eq!((report.total.cost.total, report.total.file_bytes), (Some(7.0), 5));
        assert!(report.to_string().contains("c, data set d  0.00\n  read 5 B from file systems\n"));
    }
}
