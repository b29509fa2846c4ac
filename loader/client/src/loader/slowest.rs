//! Samples that took longest to decode or to be treated by user code, by name.

use std::time::Duration;

use forebay_decode::Record;
use forebay_error::shown;
use forebay_wire::message::{Cause, SLOWEST_NAMED, SlowSample};

/// Names the slowest decodes of a batch.
pub(super) fn named(
    slowest: Vec<forebay_decode::SlowSample>,
    records: &[Record<'_>],
) -> Vec<SlowSample> {
    let named = slowest.into_iter().map(|slow| SlowSample {
        key: records[slow.index].key.to_owned(),
        url: shown(records[slow.index].url),
        stage: Cause::Decode.name().to_owned(),
        field: Some(slow.field),
        seconds: Duration::from_nanos(slow.ns).as_secs_f64(),
    });
    named.collect()
}

/// Adds a batch's slowest samples to those of the job, of which the slowest stay. A sample that
/// comes again, as in the next epoch, stays once.
pub(super) fn merge(all: &mut Vec<SlowSample>, more: &[SlowSample]) {
    let floor = all.last().filter(|_| all.len() == SLOWEST_NAMED).map_or(0.0, |last| last.seconds);
    for sample in more.iter().filter(|sample| sample.seconds > floor) {
        let is_same = |other: &SlowSample| {
            (&sample.key, &sample.url, &sample.stage, &sample.field)
                == (&other.key, &other.url, &other.stage, &other.field)
        };
        match all.iter_mut().find(|other| is_same(other)) {
            Some(other) => other.seconds = other.seconds.max(sample.seconds),
            None => all.push(sample.clone()),
        }
    }
    all.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
    all.truncate(SLOWEST_NAMED);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(key: u32, seconds: f64) -> SlowSample {
        let (url, field) = ("s3://b/0.tar".to_owned(), Some("image".to_owned()));
        SlowSample { key: key.to_string(), url, stage: "decode".to_owned(), field, seconds }
    }

    #[test]
    fn slowest_samples_of_all_batches_stay_once() {
        let mut all = Vec::new();
        for batch in 0..10_u32 {
            let more: Vec<_> =
                (0..4).map(|n| sample(batch * 4 + n, f64::from(batch * 4 + n))).collect();
            merge(&mut all, &more);
        }
        merge(&mut all, &[sample(39, 50.0), sample(38, 1.0), sample(2, 2.0)]);
        let keys: Vec<_> = all.iter().map(|sample| sample.key.parse::<u32>().unwrap()).collect();
        assert_eq!(keys, (24..40).rev().collect::<Vec<_>>());
        assert_eq!((all[0].seconds, all[1].seconds), (50.0, 38.0));
    }
}
