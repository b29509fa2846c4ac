//! A report as text, for terminals.

use std::fmt;

use forebay_wire::message::SlowSample;

use super::{EpochReport, Report};
use crate::contest;
use crate::starvation::differential::Differential;
use crate::starvation::search::Held;

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let accelerators = self.configuration.accelerators;
        write!(f, "forebay {}  {}", self.release, self.profile)?;
        if accelerators > 1 {
            write!(f, " x {accelerators}")?;
        }
        writeln!(f, "  batch {}  step {:.1} ms", self.batch_size, self.step_seconds * 1e3)?;
        self.epochs.iter().try_for_each(|epoch| write!(f, "\n{epoch}"))?;
        if let Some(steps) = self.few_steps() {
            writeln!(f, "\nbeware: {}", few(steps, self.configuration.prefetch))?;
        }
        if let Some(differential) = &self.differential {
            write!(f, "\n{differential}")?;
        }
        self.held.iter().try_for_each(|held| write!(f, "\n{held}"))?;
        self.contest.iter().try_for_each(|told| write!(f, "\n{}", contest::table(told)))?;
        writeln!(f, "\n{}; configuration {:.12}", self.machine, self.configuration_sha256)
    }
}

/// Returns the warning about so few steps.
pub(in crate::starvation) fn few(steps: u64, prefetch: u32) -> String {
    format!(
        "with {steps} counted steps in an epoch, many batches were prefetched during the first, up to {prefetch}; name more shards, or use --find-most, which repeats them"
    )
}

/// Returns the warning about time without a cause.
pub(in crate::starvation) fn unbooked_means(seconds: f64) -> String {
    format!(
        "causes and wait differ by {:.1} ms, more than the calls themselves take: on a machine with other work shares by cause are unreliable",
        seconds * 1e3
    )
}

impl fmt::Display for EpochReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let wait = &self.wait;
        writeln!(
            f,
            "epoch {} ({})  AU_ideal {:.1} % (measured {:.1} %, by DLIO's formula {:.1} %)  {:.0} samples/s  {:.3} GB/s  CPU {:.2} ms/sample",
            self.epoch,
            self.temperature,
            self.au_ideal * 100.0,
            self.au_measured * 100.0,
            self.au_dlio * 100.0,
            self.samples_per_second,
            self.bytes_per_second / 1e9,
            self.cpu_ms_per_sample,
        )?;
        if self.accelerators.len() > 1 {
            write!(f, "  each:")?;
            for one in &self.accelerators {
                write!(f, "  {:.1} %", one.au_ideal * 100.0)?;
            }
            writeln!(f)?;
        }
        writeln!(
            f,
            "  first batch {:.3} s; {} steps in {:.2} s; waited {:.2} s; fetched {:.3} GB; read from {}",
            self.first_batch_seconds,
            self.steps,
            self.wall_seconds,
            wait.measured_seconds,
            self.fetched_bytes as f64 / 1e9,
            self.by_tier
        )?;
        writeln!(
            f,
            "  wait per step: p50 {:.1} ms  p95 {:.1} ms  p99 {:.1} ms  max {:.1} ms; {} longer than {:.0} % of a step",
            wait.summary.p50_seconds * 1e3,
            wait.summary.p95_seconds * 1e3,
            wait.summary.p99_seconds * 1e3,
            wait.summary.max_seconds * 1e3,
            wait.stalls,
            wait.stall_share_of_step * 100.0
        )?;
        write!(f, "  wait by cause:")?;
        for (cause, seconds) in &wait.summary.by_cause {
            let share = if wait.summary.total_seconds > 0.0 {
                seconds / wait.summary.total_seconds
            } else {
                0.0
            };
            write!(f, "  {cause} {seconds:.2} s ({:.0} %)", share * 100.0)?;
        }
        writeln!(f)?;
        write_slowest(f, &self.slowest)?;
        if let Some(saves) = &self.saves {
            writeln!(
                f,
                "  {} saves of {:.2} GB: waited {:.2} s, p50 {:.0} ms  max {:.0} ms; AU_ideal without them {:.1} %",
                saves.count,
                saves.bytes as f64 / saves.count.max(1) as f64 / 1e9,
                saves.total_seconds,
                saves.p50_seconds * 1e3,
                saves.max_seconds * 1e3,
                saves.au_ideal_without * 100.0
            )?;
        }
        if let Some(unbooked) = wait.unbooked_seconds() {
            writeln!(f, "  beware: {}", unbooked_means(unbooked))?;
        }
        Ok(())
    }
}

fn write_slowest(f: &mut fmt::Formatter<'_>, slowest: &[SlowSample]) -> fmt::Result {
    for (number, slow) in slowest.iter().enumerate() {
        let SlowSample { key, url, stage, seconds, .. } = slow;
        let before = if number == 0 { "  slowest samples: " } else { "; " };
        write!(f, "{before}{stage} {:.1} ms, {key} in {url}", seconds * 1e3)?;
    }
    if slowest.is_empty() { Ok(()) } else { writeln!(f) }
}

impl fmt::Display for Differential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cold = self.cold_step_seconds;
        let part = |seconds: f64| (seconds * 1e3, seconds / cold * 100.0);
        let (compute, compute_share) = part(self.synthetic_step_seconds);
        let (prep, prep_share) = part(self.prep_stall_seconds);
        let (fetch, fetch_share) = part(self.fetch_stall_seconds);
        writeln!(
            f,
            "a cold step takes {:.1} ms: computing {compute:.1} ms ({compute_share:.0} %), prep stall {prep:.1} ms \
             ({prep_share:.0} %), fetch stall {fetch:.1} ms ({fetch_share:.0} %)",
            cold * 1e3
        )?;
        writeln!(
            f,
            "  from the difference between synthetic, cached and cold epochs; {:.1} ms were charged to origin, peer and index",
            self.booked_fetch_seconds * 1e3
        )
    }
}

impl fmt::Display for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (target, au) = (self.target * 100.0, self.au_ideal * 100.0);
        match self.accelerators {
            Some(fed) => write!(
                f,
                "this node feeds {fed:.2} such accelerators at AU_ideal >= {target:.0} %: {:.0} samples/s at {au:.1} %",
                self.samples_per_second
            )?,
            None if self.cut_off => write!(
                f,
                "the search for the number of such accelerators was cut off after {} trials: the last of {:.2} reached {au:.1} %",
                self.trials.len(),
                self.speed
            )?,
            None => write!(
                f,
                "the number of such accelerators at AU_ideal >= {target:.0} % was not confirmed by longer trials: the last of {:.2} reached {au:.1} %",
                self.speed
            )?,
        }
        if let (Some(_), true) = (self.accelerators, self.cut_off) {
            write!(f, "; the search was cut off, the number may be higher")?;
        }
        writeln!(f, "; without a limit it gives {:.0}", self.unlimited_samples_per_second)?;
        match self.trials.iter().map(|trial| trial.fetched_bytes).sum::<u64>() {
            0 => Ok(()),
            bytes => writeln!(
                f,
                "  {:.3} GB came from origins meanwhile: the link limits this figure, too",
                bytes as f64 / 1e9
            ),
        }
    }
}
