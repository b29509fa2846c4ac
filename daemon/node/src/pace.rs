//! Progress of jobs: read rates and waits, as reported by their trainers.
//!
//! A trainer's report is bounded and affects only its own lines. It holds totals; recent rates are
//! the difference of two reports, by this daemon's clock.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use forebay_api::progress::{Lately, ProgressReport, by_cause};
use forebay_wire::message::{Cause, Progress};

/// Words that are kept: trainers say one a second, and ten seconds even out what comes in bursts.
const KEPT: usize = 11;

/// Reports closer together than this replace each other: the interval must be long enough to divide
/// by.
const APART: Duration = Duration::from_secs(1);

/// A trainer that has said nothing for so many times what usually lies between two of its words is
/// silent.
const USUAL_GAPS: u32 = 2;

/// Recent reports of a trainer.
#[derive(Debug, Default)]
pub(crate) struct Pace {
    /// The oldest first.
    words: VecDeque<(Instant, Progress)>,
    /// Waits from before it was this daemon's job, or from an earlier connection.
    before_ns: [u64; Cause::ALL.len()],
    /// True once a run has begun: earlier reports belong to a previous run.
    has_begun: bool,
}

impl Pace {
    /// The trainer says how far it came; who made its rows is told elsewhere, and need not be kept
    /// here.
    pub(crate) fn heard(&mut self, progress: Progress, now: Instant) {
        if !self.has_begun {
            self.before_ns = progress.waited_ns;
        }
        let word = (now, progress);
        let before = self.words.iter().nth_back(1).map(|(at, _)| *at);
        if before.is_some_and(|before| now.saturating_duration_since(before) < APART)
            && let Some(last) = self.words.back_mut()
        {
            *last = word;
            return;
        }
        if self.words.len() == KEPT {
            self.words.pop_front();
        }
        self.words.push_back(word);
    }

    /// A run begins.
    pub(crate) fn begins(&mut self) {
        self.has_begun = true;
    }

    /// Nanoseconds that it waited since it is this connection's, by cause; a wait that goes on is
    /// booked at its end.
    pub(crate) fn waited(&self) -> [u64; Cause::ALL.len()] {
        let mut waited = self.words.back().map(|(_, word)| word.waited_ns).unwrap_or_default();
        let since = waited.iter_mut().zip(self.before_ns);
        since.for_each(|(ns, before)| *ns = ns.saturating_sub(before));
        waited
    }

    /// Returns the progress; none if its trainer has not reported yet.
    pub(crate) fn report(&self, now: Instant) -> Option<ProgressReport> {
        let (at, last) = self.words.back()?;
        let ago = now.saturating_duration_since(*at);
        let waits = last.waiting_ns > 0;
        let waiting =
            Duration::from_nanos(last.waiting_ns) + if waits { ago } else { Duration::ZERO };
        let seconds = |ns: u64| Duration::from_nanos(ns).as_secs_f64();
        Some(ProgressReport {
            batches: last.batches,
            samples: last.samples,
            tier_bytes: last.bytes.tier,
            origin_bytes: last.bytes.origin,
            waited_seconds: by_cause(|cause| seconds(last.waited_ns[cause as usize])).collect(),
            waiting_seconds: waiting.as_secs_f64(),
            waits: last.waits.clone(),
            heard_seconds_ago: ago.as_secs_f64(),
            lately: self.lately(ago),
        })
    }

    /// Up to its last word, which is so long ago.
    fn lately(&self, ago: Duration) -> Option<Lately> {
        let ((begin, first), (end, last)) = (self.words.front()?, self.words.back()?);
        let between = end.saturating_duration_since(*begin);
        if between < APART {
            return None;
        }
        // A trainer speaks as it takes batches. One that has long taken none (it validates, or
        // writes a checkpoint) does not wait: of one that does the last word says so.
        let gaps = u32::try_from(self.words.len() - 1).unwrap_or(1);
        let usual = (between / gaps).max(APART) * USUAL_GAPS;
        let silent = if last.waiting_ns > 0 { Duration::ZERO } else { ago.saturating_sub(usual) };
        let seconds = (between + silent).as_secs_f64();
        // A trainer's totals may decrease; the rate is then zero, not negative.
        let rate = |of: fn(&Progress) -> u64| of(last).saturating_sub(of(first)) as f64 / seconds;
        let grown = |cause: Cause| {
            last.waited_ns[cause as usize].saturating_sub(first.waited_ns[cause as usize]) as f64
        };
        let waited_share = (rate(waited) / 1e9).min(1.0);
        // Only the recent part of a wait that began earlier counts.
        let all: f64 = Cause::ALL.into_iter().map(grown).sum();
        let share = |cause| if all > 0.0 { waited_share * grown(cause) / all } else { 0.0 };
        Some(Lately {
            seconds,
            samples_per_second: rate(|word| word.samples),
            bytes_per_second: rate(|word| word.bytes.tier.saturating_add(word.bytes.origin)),
            waited_share,
            waited_for: by_cause(share).collect(),
        })
    }
}

/// Nanoseconds waited in all, the present wait among them.
fn waited(word: &Progress) -> u64 {
    word.waited_ns.iter().fold(word.waiting_ns, |sum, ns| sum.saturating_add(*ns))
}

#[cfg(test)]
mod tests {
    use forebay_wire::message::Bytes;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn word(samples: u64, origin_ms: u64, decode_ms: u64, waiting_ms: u64) -> Progress {
        let mut waited_ns = [0; Cause::ALL.len()];
        waited_ns[Cause::Origin as usize] = origin_ms * 1_000_000;
        waited_ns[Cause::Decode as usize] = decode_ms * 1_000_000;
        let bytes = Bytes { tier: samples * 10, origin: samples };
        let waiting_ns = waiting_ms * 1_000_000;
        Progress {
            batches: samples / 8,
            samples,
            bytes,
            waited_ns,
            waiting_ns,
            ..Progress::default()
        }
    }

    fn close(one: f64, other: f64) -> bool {
        (one - other).abs() < 1e-9
    }

    #[test]
    fn rates_and_waits_are_differences_of_reports() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        assert_eq!(pace.report(start), None);
        for second in 0..20_u32 {
            let at = u64::from(second);
            pace.heard(word(100 * at, 150 * at, 50 * at, 0), start + second * SECOND);
        }
        let report = pace.report(start + 21 * SECOND).unwrap();
        let lately = report.lately.clone().unwrap();
        assert_eq!((report.samples, report.tier_bytes, report.origin_bytes), (1900, 19_000, 1900));
        assert!(
            close(lately.seconds, 10.0) && close(lately.samples_per_second, 100.0),
            "{lately:?}"
        );
        assert!(close(lately.bytes_per_second, 1100.0) && close(lately.waited_share, 0.2));
        assert!(
            close(lately.waited_for["origin"], 0.15) && close(lately.waited_for["decode"], 0.05)
        );
        assert!(
            close(report.waited_seconds["origin"], 2.85) && close(report.heard_seconds_ago, 2.0)
        );
        assert!(close(report.waiting_seconds, 0.0));
        assert_eq!(
            report.to_string(),
            "read 1900 samples in 237 batches, 100 samples/s, 1.1 KiB/s; waited 20 % of the last 10 s: origin 15 %, decode 5 %"
        );
    }

    /// The share of waits falls while a trainer validates or writes a checkpoint.
    #[test]
    fn recent_figures_fade_while_a_trainer_is_silent() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        for step in 0..=10_u32 {
            let at = u64::from(step);
            pace.heard(word(100 * at, 1000 * at, 0, 0), start + step * 4 * SECOND);
        }
        let at = |seconds| pace.report(start + seconds * SECOND).unwrap().lately.unwrap();
        // A step of four seconds is no silence.
        assert_eq!(at(48), at(40));
        assert!(close(at(48).seconds, 40.0) && close(at(48).waited_share, 0.25));
        let later = at(48 + 360);
        assert!(close(later.seconds, 400.0) && close(later.waited_share, 0.025), "{later:?}");
        assert!(close(later.waited_for["origin"], 0.025) && close(later.samples_per_second, 2.5));
    }

    /// A wait counts while it lasts; its cause is known at its end. The share never exceeds one.
    #[test]
    fn long_wait_is_reported_while_it_lasts() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        for second in 0..=60_u32 {
            pace.heard(word(8, 0, 0, 1000 * u64::from(second)), start + second * SECOND);
        }
        let report = pace.report(start + 62 * SECOND).unwrap();
        let lately = report.lately.clone().unwrap();
        assert!(
            close(report.waiting_seconds, 62.0) && close(lately.waited_share, 1.0),
            "{report:?}"
        );
        assert!(lately.waited_for.values().all(|share| close(*share, 0.0)));
        assert!(report.to_string().ends_with("waits for a batch now, 62.0 s so far"), "{report}");
        pace.heard(word(16, 60_000, 0, 0), start + 61 * SECOND);
        let lately = pace.report(start + 61 * SECOND).unwrap().lately.unwrap();
        assert!(
            lately.waited_share <= 1.0 && close(lately.waited_for["origin"], lately.waited_share)
        );
        assert!(lately.waited_share > 0.8, "{lately:?}");
    }

    /// A job that reconnects brings totals of waits that were counted before.
    #[test]
    fn waits_before_a_reconnect_are_not_counted_again() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        assert_eq!(pace.waited(), [0; Cause::ALL.len()]);
        pace.heard(word(100, 700, 20, 0), start);
        assert_eq!(pace.waited()[Cause::Origin as usize], 0);
        pace.begins();
        pace.heard(word(108, 800, 20, 0), start + SECOND);
        let waited = pace.waited();
        assert_eq!(waited[Cause::Origin as usize], 100_000_000);
        assert_eq!(waited[Cause::Decode as usize], 0);
    }

    /// The bound holds for any rate and any content of reports.
    #[test]
    fn reports_of_a_trainer_are_bounded() {
        let (mut pace, start) = (Pace::default(), Instant::now());
        for millisecond in 0..30_000_u32 {
            let samples = if millisecond % 2 == 0 { u64::MAX } else { 0 };
            let waited_ns = [u64::MAX; Cause::ALL.len()];
            let bytes = Bytes { tier: u64::MAX, origin: u64::MAX };
            let said =
                Progress { samples, waited_ns, waiting_ns: u64::MAX, bytes, ..Progress::default() };
            pace.heard(said, start + millisecond * SECOND / 1000);
        }
        assert_eq!(pace.words.len(), KEPT);
        let lately = pace.report(start + 30 * SECOND).unwrap().lately.unwrap();
        assert!(lately.seconds >= 4.0 && (0.0..=1.0).contains(&lately.waited_share), "{lately:?}");
    }
}
