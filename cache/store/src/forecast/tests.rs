//! Announced reads of jobs: the next fetch, refusals, evictions, ids and reports.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use std::collections::{BTreeMap, BTreeSet};

use forebay_policy::{Epoch, Epochs, Role, Use};
use proptest::prelude::*;

use super::*;

/// Bytes of a shard that a job reads in a second at the initial rate.
const BYTES: u64 = UNSEEN as u64;

fn object(name: &str) -> ObjectKey {
    ObjectKey::new("", name)
}

/// Adds a job that reads these shards one after the other, in each of `epochs` epochs.
fn add_epochs(forecast: &Forecast, job: JobId, names: &[&str], epochs: u64) -> Arc<[AtomicBool]> {
    let urls = names.iter().map(|name| format!("s3://b/{name}?secret")).collect();
    let (tenant, client, options) = (None, None, Options::default());
    let scope = Scope::Node(1.0);
    let via = ReadContext { scope, tenant, owner: job, job: None, client, options, urls };
    let via = Arc::new(via);
    let objects: Vec<_> = names.iter().map(|name| (object(name), BYTES)).collect();
    forecast.add_job(job, (&format!("job {job}"), via), &objects, |shards| {
        Box::new(Epochs::new(shards.clone(), move |number| {
            let starts = (0..).step_by(BYTES as usize);
            let one = |(&shard, start)| Use { shard, start, end: start + BYTES };
            let uses: Vec<_> = shards.iter().zip(starts).map(one).collect();
            let bytes = BYTES * uses.len() as u64;
            (number < epochs).then_some(Epoch { uses, bytes })
        }))
    })
}

/// Adds a job that reads these shards once, and lets the forecast decide about them.
fn add(forecast: &Forecast, job: JobId, names: &[&str]) {
    add_epochs(forecast, job, names, 1);
    let decided: Vec<_> = names.iter().map(|name| (object(name), Role::Kept)).collect();
    forecast.set_roles(&decided);
}

fn forecast(names: &[&str]) -> Forecast {
    let forecast = Forecast::new();
    add(&forecast, 1, names);
    forecast
}

fn id(forecast: &Forecast, name: &str) -> Shard {
    forecast.shard_id(object(name)).unwrap()
}

fn next(forecast: &Forecast) -> Option<ObjectKey> {
    forecast.next_fetch().ok().map(|next| next.object)
}

#[test]
fn shards_are_fetched_in_the_order_of_their_reads() {
    let forecast = forecast(&["a", "b", "c"]);
    for name in ["a", "b", "c"] {
        let next = forecast.next_fetch().ok().unwrap();
        assert_eq!((next.object, next.bytes), (object(name), BYTES));
        assert_eq!(next.via.urls[next.at], format!("s3://b/{name}?secret"));
        forecast.note_fetch_start(next.shard);
    }
    assert!(matches!(forecast.next_fetch(), Err(None)), "nothing is left to fetch");
    // A fetch that ends without the shard leaves it missing.
    forecast.note_fetch_end(object("b"), None);
    assert_eq!(next(&forecast), Some(object("b")));
}

#[test]
fn shard_of_two_jobs_is_fetched_for_the_earlier_need() {
    let forecast = forecast(&["a", "b", "c"]);
    add(&forecast, 2, &["c", "a"]);
    forecast.note_fetch_start(id(&forecast, "a"));
    // The second job begins with the shard that the first job reads last.
    assert_eq!(next(&forecast), Some(object("c")));
    forecast.remove_job(2);
    assert_eq!(next(&forecast), Some(object("b")));
}

#[test]
fn refused_shard_lets_the_next_one_go_first() {
    let forecast = forecast(&["a", "b"]);
    assert_eq!(forecast.next_retry(), None);
    let before = forecast.now();
    forecast.note_fetch_start(id(&forecast, "a"));
    forecast.note_fetch_end(object("a"), Some(Refusal::Room));
    let retry = forecast.next_retry().unwrap();
    assert!(retry >= before + REFUSED.as_micros() as u64);
    assert!(retry <= forecast.now() + REFUSED.as_micros() as u64);
    assert_eq!(next(&forecast), Some(object("b")));
    let lacks = forecast.report(0).jobs[0].lacks.clone().unwrap();
    assert_eq!((lacks.url.as_str(), lacks.arrives_in), ("s3://b/a", None));
    assert_eq!(lacks.refused, Some(Refusal::Room));
    // A fetch that a waiting job begins ends the refusal.
    forecast.note_arriving(id(&forecast, "a"));
    let lacks = forecast.report(0).jobs[0].lacks.clone().unwrap();
    assert!(lacks.arrives_in.is_some() && lacks.refused.is_none());
}

#[test]
fn many_refusals_stop_all_fetches() {
    let names: Vec<_> = (0..=REFUSALS).map(|name| name.to_string()).collect();
    let names: Vec<_> = names.iter().map(String::as_str).collect();
    let forecast = forecast(&names);
    for name in &names[..REFUSALS - 1] {
        forecast.postpone(id(&forecast, name), Refusal::Origin);
    }
    assert_eq!(next(&forecast), Some(object(names[REFUSALS - 1])));
    forecast.postpone(id(&forecast, names[REFUSALS - 1]), Refusal::Origin);
    let again = forecast.next_fetch().err().unwrap();
    assert!(again.is_some() && again == forecast.next_retry());
    // Refusals end with the job that read the shards.
    forecast.release_ids(forecast.remove_job(1));
    assert_eq!(forecast.next_retry(), None);
}

#[test]
fn fetch_of_a_forgotten_shard_ends_without_effect() {
    let forecast = forecast(&["a"]);
    let shard = id(&forecast, "a");
    forecast.note_fetch_start(shard);
    let orphans = forecast.remove_job(1);
    assert_eq!(orphans, [shard]);
    forecast.note_fetch_end(object("a"), Some(Refusal::Origin));
    forecast.postpone(shard, Refusal::Origin);
    forecast.note_transfer_start(shard);
    forecast.note_arrival_failed(shard);
    assert_eq!((forecast.next_retry(), next(&forecast)), (None, None));
    assert!(forecast.remove_job(1).is_empty(), "the job is gone already");
}

#[test]
fn ids_are_reused_only_after_their_release() {
    let forecast = forecast(&["a", "b"]);
    let orphans = forecast.remove_job(1);
    assert_eq!(orphans.len(), 2);
    // The tables may still hold shards under the old ids.
    add(&forecast, 2, &["c"]);
    let third = id(&forecast, "c");
    assert!(!orphans.contains(&third));
    forecast.release_ids(orphans.clone());
    add(&forecast, 3, &["d", "e", "c"]);
    let ids = BTreeSet::from(["d", "e"].map(|name| id(&forecast, name)));
    assert_eq!(ids, orphans.into_iter().collect());
    assert_eq!(id(&forecast, "c"), third);
}

#[test]
fn shard_stays_known_while_one_job_reads_it() {
    let forecast = forecast(&["a", "b"]);
    add(&forecast, 2, &["b"]);
    let gone = id(&forecast, "a");
    assert_eq!(forecast.remove_job(1), [gone]);
    assert_eq!(forecast.shard_id(object("a")), None);
    assert!(forecast.shard_id(object("b")).is_some());
    assert_eq!(forecast.next_use(object("b")), Some(NOW));
}

#[test]
fn shard_needed_last_goes_first() {
    let forecast = forecast(&["a", "b", "c", "d"]);
    let [here, there] = [(); 2].map(|()| forecast.new_partition_id().unwrap());
    for (name, place) in [("a", here), ("b", here), ("c", here), ("d", there)] {
        forecast.note_present(id(&forecast, name), place);
    }
    let last = |places: &[PartitionNumber], than| forecast.last_needed(places, than, &mut |_| true);
    assert_eq!(last(&[here], None), Some(id(&forecast, "c")));
    assert_eq!(last(&[here, there], None), Some(id(&forecast, "d")));
    assert_eq!(last(&[], None), None);
    // A shard leaves only for one that is needed before it.
    let needed = |name| forecast.next_use(object(name));
    assert_eq!(last(&[here], needed("b")), Some(id(&forecast, "c")));
    assert_eq!(last(&[here], needed("c")), None);
    let kept = id(&forecast, "c");
    let other = forecast.last_needed(&[here], None, &mut |shard| shard != kept);
    assert_eq!(other, Some(id(&forecast, "b")));
    // A shard without a later use is needed last of all.
    forecast.advance(1, BYTES, Duration::ZERO);
    assert_eq!(needed("a"), Some(NEVER));
    assert_eq!(last(&[here], None), Some(id(&forecast, "a")));
}

#[test]
fn shard_that_leaves_its_last_place_is_wanted_again() {
    let forecast = forecast(&["a"]);
    let [here, there] = [(); 2].map(|()| forecast.new_partition_id().unwrap());
    let shard = id(&forecast, "a");
    forecast.note_present(shard, here);
    forecast.note_present(shard, there);
    forecast.note_left(shard, here);
    assert_eq!(next(&forecast), None, "another partition has it");
    forecast.note_left(shard, there);
    assert_eq!(next(&forecast), Some(object("a")));
}

#[test]
fn partition_ids_are_distinct_and_end() {
    let forecast = Forecast::new();
    let ids: Vec<_> = std::iter::from_fn(|| forecast.new_partition_id()).collect();
    assert_eq!(ids.len(), usize::from(PartitionNumber::MAX));
    assert_eq!(ids.iter().collect::<BTreeSet<_>>().len(), ids.len());
    assert_eq!(forecast.new_partition_id(), None);
}

#[test]
fn only_transfers_measure_the_link() {
    let forecast = forecast(&["a", "b", "c"]);
    let place = forecast.new_partition_id().unwrap();
    // It came from another tier, not over the link.
    forecast.note_arriving(id(&forecast, "a"));
    forecast.note_arrived(id(&forecast, "a"), place);
    assert_eq!(forecast.report(0).bandwidth.to_bits(), UNSEEN.to_bits());
    // A transfer that fails measures nothing either.
    forecast.note_transfer_start(id(&forecast, "b"));
    forecast.note_arrival_failed(id(&forecast, "b"));
    forecast.note_arrived(id(&forecast, "b"), place);
    assert_eq!(forecast.report(0).bandwidth.to_bits(), UNSEEN.to_bits());
    forecast.note_arriving(id(&forecast, "c"));
    forecast.note_transfer_start(id(&forecast, "c"));
    forecast.note_arrived(id(&forecast, "c"), place);
    assert_ne!(forecast.report(0).bandwidth.to_bits(), UNSEEN.to_bits());
    assert_eq!(next(&forecast), None, "all are here");
}

#[test]
fn progress_of_a_job_never_falls() {
    let forecast = forecast(&["a", "b", "c"]);
    let read = || forecast.report(0).jobs[0].read;
    forecast.advance(1, 2 * BYTES, Duration::from_millis(1500));
    forecast.advance(1, BYTES, Duration::from_millis(1500));
    assert_eq!(read(), 2 * BYTES);
    assert_eq!(forecast.report(0).jobs[0].waited.to_bits(), 3.0_f64.to_bits());
    assert_eq!(next(&forecast), Some(object("c")));
    assert!(!forecast.restart_at(1, BYTES), "it had read more");
    assert!(forecast.restart_at(1, 2 * BYTES) && forecast.restart_at(1, 3 * BYTES));
    assert_eq!((read(), next(&forecast)), (3 * BYTES, None));
    assert!(!forecast.restart_at(2, 0), "there is no such job");
    forecast.advance(2, BYTES, Duration::ZERO);
    assert_eq!(forecast.report(0).jobs.len(), 1);
}

#[test]
fn second_epoch_is_needed_after_the_first() {
    let forecast = Forecast::new();
    add_epochs(&forecast, 1, &["a", "b"], 2);
    forecast.set_roles(&[(object("a"), Role::Kept), (object("b"), Role::Kept)]);
    assert_eq!(forecast.next_use(object("a")), Some(NOW));
    forecast.advance(1, BYTES, Duration::ZERO);
    let needed = ["a", "b"].map(|name| forecast.next_use(object(name)).unwrap());
    assert!(needed[1] == NOW && (NOW + 1..NEVER).contains(&needed[0]), "{needed:?}");
    forecast.advance(1, 4 * BYTES, Duration::ZERO);
    assert_eq!(forecast.next_use(object("a")), Some(NEVER));
}

#[test]
fn evictions_are_charged_to_the_latest_fetch() {
    let forecast = forecast(&["a", "b", "c"]);
    let [a, b, c] = ["a", "b", "c"].map(|name| id(&forecast, name));
    for shard in [a, b, a] {
        forecast.note_fetch_start(shard);
    }
    forecast.note_eviction(object("a"), object("c"));
    forecast.note_eviction(object("a"), object("nobody's"));
    forecast.note_eviction(object("b"), object("c"));
    // Neither was fetched ahead of need.
    forecast.note_eviction(object("c"), object("b"));
    forecast.note_eviction(object("nobody's"), object("b"));
    let report = forecast.report(0);
    assert_eq!((report.fetches, report.evictions), (3, 3));
    let decisions = forecast.trace(0, 1).decisions;
    let went: Vec<_> = decisions.iter().map(|one| (one.fetched, one.went.clone())).collect();
    assert_eq!(went, [(a, vec![]), (b, vec![c]), (a, vec![c])]);
}

#[test]
fn oldest_decisions_are_dropped() {
    let forecast = forecast(&["a", "b"]);
    let [a, b] = ["a", "b"].map(|name| id(&forecast, name));
    forecast.note_fetch_start(a);
    for _ in 0..REMEMBERED {
        forecast.note_fetch_start(b);
    }
    let decisions = forecast.trace(0, 1).decisions;
    assert_eq!((decisions.len(), forecast.report(0).fetches), (REMEMBERED, REMEMBERED as u64 + 1));
    assert!(decisions.iter().all(|one| one.fetched == b));
    forecast.note_eviction(object("a"), object("b"));
    assert_eq!(forecast.report(0).evictions, 0, "its decision is forgotten");
}

#[test]
fn trace_holds_the_announced_reads_of_all_jobs() {
    let forecast = Forecast::new();
    add_epochs(&forecast, 2, &["b", "c"], 3);
    add_epochs(&forecast, 1, &["a", "b"], 3);
    forecast.set_roles(&["a", "b"].map(|name| (object(name), Role::Kept)));
    let place = forecast.new_partition_id().unwrap();
    let [a, b] = ["a", "b"].map(|name| id(&forecast, name));
    forecast.note_present(b, place);
    forecast.note_arriving(a);
    let trace = forecast.trace(2 * BYTES, 2);
    assert_eq!((trace.capacity, trace.bandwidth.to_bits()), (2 * BYTES, UNSEEN.to_bits()));
    let names: Vec<_> = trace.jobs.iter().map(|job| job.name.as_str()).collect();
    assert_eq!(names, ["job 1", "job 2"]);
    assert_eq!((trace.jobs[0].shards.clone(), trace.jobs[1].shards.clone()), (vec![a, b], vec![b]));
    assert!(trace.jobs.iter().all(|job| job.epochs == 2));
    // Reads of shards that the forecast does not decide about are left out. The last one begins
    // where the two rounds end.
    let starts = |job: usize, shard| -> Vec<u64> {
        let uses = trace.jobs[job].uses.iter().filter(|one| one.shard == shard);
        uses.map(|one| one.start / BYTES).collect()
    };
    assert_eq!((starts(0, a), starts(0, b)), (vec![0, 2, 4], vec![1, 3]));
    assert_eq!((starts(1, b), trace.jobs[1].uses.len()), (vec![0, 2, 4], 3));
    let mut shown = trace.names.clone();
    shown.sort();
    assert_eq!(shown, ["s3://b/a", "s3://b/b", "s3://b/c"]);
    assert_eq!(trace.shards, [BYTES; 3]);
    let mut here = trace.here;
    here.sort_unstable();
    assert_eq!(here, [a.min(b), a.max(b)]);
    assert_eq!(forecast.trace(2 * BYTES - 1, 1).here.len(), 1, "both do not fit");
    assert!(forecast.trace(BYTES - 1, 1).here.is_empty());
}

#[test]
fn report_tells_the_first_missing_shard_of_each_job() {
    let forecast = forecast(&["a", "b", "c"]);
    add(&forecast, 2, &["a"]);
    let place = forecast.new_partition_id().unwrap();
    forecast.note_present(id(&forecast, "a"), place);
    let report = forecast.report(0);
    assert_eq!(
        report.jobs.iter().map(|job| (job.job, job.shards)).collect::<Vec<_>>(),
        [(1, 3), (2, 1)]
    );
    let lacks = report.jobs[0].lacks.clone().unwrap();
    assert_eq!((lacks.url.as_str(), lacks.refused), ("s3://b/b", None));
    // The job reads the shard before it for a second; the link takes a second for it.
    assert_eq!(lacks.needed_in.to_bits(), 1.0_f64.to_bits());
    assert!(lacks.arrives_in.is_some_and(|seconds| (0.9..1.1).contains(&seconds)));
    assert!(report.jobs[0].slack.is_some() && report.slack.is_some());
    assert_eq!((report.jobs[1].slack, report.jobs[1].lacks.clone()), (None, None));
    for name in ["b", "c"] {
        forecast.note_present(id(&forecast, name), place);
    }
    let report = forecast.report(0);
    assert_eq!((report.slack, report.jobs[0].slack), (None, None));
    assert_eq!(report.jobs[0].lacks, None);
}

#[test]
fn remedy_is_reported_only_for_jobs_that_wait() {
    let forecast = forecast(&["a", "b"]);
    // It reads faster than the link, but has not waited.
    forecast.advance(1, BYTES, Duration::ZERO);
    let rate = forecast.report(0).jobs[0].rate;
    assert!(rate > UNSEEN);
    assert_eq!(forecast.report(0).lacks, None);
    forecast.advance(1, BYTES, Duration::from_secs(100));
    let remedy = forecast.report(0).lacks.unwrap();
    let missing = remedy.bandwidth.unwrap();
    assert!((missing / (rate - UNSEEN) - 1.0).abs() < 1e-6, "{missing} {rate}");
    assert!(remedy.cache.is_some_and(|bytes| (1..2 * BYTES).contains(&bytes)));
    assert_eq!(forecast.report(2 * BYTES).lacks, None, "the cache holds everything");
    // Shards that the forecast does not decide about need no cache.
    forecast.set_roles(&[(object("a"), Role::Apart), (object("b"), Role::Apart)]);
    assert_eq!(forecast.report(0).lacks, None);
}

#[derive(Debug, Clone)]
enum Step {
    Add(JobId, Vec<usize>),
    Remove(JobId),
    Decide(usize, bool),
    Release,
}

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn step() -> impl Strategy<Value = Step> {
    let shards = prop::sample::subsequence((0..NAMES.len()).collect::<Vec<_>>(), 1..NAMES.len());
    prop_oneof![
        (0_u64..4, shards).prop_map(|(job, shards)| Step::Add(job, shards)),
        (0_u64..4).prop_map(Step::Remove),
        (0..NAMES.len(), any::<bool>()).prop_map(|(shard, yes)| Step::Decide(shard, yes)),
        Just(Step::Release),
    ]
}

/// Jobs with their shards, and the shards that the forecast decides about.
#[derive(Default)]
struct Model {
    jobs: BTreeMap<JobId, (Vec<usize>, Arc<[AtomicBool]>)>,
    managed: BTreeSet<usize>,
}

impl Model {
    fn is_read(&self, shard: usize) -> bool {
        self.jobs.values().any(|(shards, _)| shards.contains(&shard))
    }

    fn urls(&self, job: Option<JobId>) -> BTreeSet<String> {
        let jobs = self.jobs.iter().filter(|(of, _)| job.is_none_or(|job| job == **of));
        let shards = jobs.flat_map(|(_, (shards, _))| shards);
        shards.map(|shard| format!("s3://b/{}?secret", NAMES[*shard])).collect()
    }

    fn apply(&mut self, forecast: &Forecast, orphans: &mut Vec<Shard>, step: Step) {
        match step {
            Step::Add(job, shards) if !self.jobs.contains_key(&job) => {
                let names: Vec<_> = shards.iter().map(|shard| NAMES[*shard]).collect();
                let flags = add_epochs(forecast, job, &names, 1);
                self.jobs.insert(job, (shards, flags));
            }
            Step::Add(..) => {}
            Step::Remove(job) => {
                self.jobs.remove(&job);
                orphans.extend(forecast.remove_job(job));
                let left: Vec<_> = self.managed.iter().copied().collect();
                self.managed = left.into_iter().filter(|shard| self.is_read(*shard)).collect();
            }
            Step::Decide(shard, yes) => {
                let is_new = self.is_read(shard) && self.managed.contains(&shard) != yes;
                let role = if yes { Role::Kept } else { Role::Apart };
                assert_eq!(forecast.set_roles(&[(object(NAMES[shard]), role)]), is_new);
                if is_new && yes {
                    self.managed.insert(shard);
                } else if is_new {
                    self.managed.remove(&shard);
                }
            }
            Step::Release => forecast.release_ids(std::mem::take(orphans)),
        }
    }

    fn check(&self, forecast: &Forecast) {
        let ids =
            (0..NAMES.len()).filter_map(|at| Some((at, forecast.shard_id(object(NAMES[at]))?)));
        let ids: Vec<_> = ids.collect();
        assert!(ids.iter().map(|(at, _)| *at).eq(self.managed.iter().copied()), "{ids:?}");
        assert_eq!(ids.iter().map(|(_, id)| id).collect::<BTreeSet<_>>().len(), ids.len());
        for job in (0..4).map(Some).chain([None]) {
            let announced = forecast.announced_shards(job);
            let urls: BTreeSet<_> = announced.iter().filter_map(|one| one.url()).collect();
            assert!(urls.into_iter().eq(self.urls(job).iter().map(String::as_str)), "{job:?}");
        }
        for (job, (shards, flags)) in &self.jobs {
            let flags = flags.iter().map(|flag| flag.load(Ordering::Relaxed));
            assert!(flags.eq(shards.iter().map(|shard| self.managed.contains(shard))), "{job}");
        }
        let report = forecast.report(0);
        let managed =
            |shards: &[usize]| shards.iter().filter(|at| self.managed.contains(at)).count();
        let jobs = self.jobs.iter().map(|(job, (shards, _))| (*job, managed(shards)));
        assert!(report.jobs.iter().map(|job| (job.job, job.shards)).eq(jobs));
        assert_eq!(next(forecast).is_some(), !self.managed.is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Jobs come and go and rules change; the forecast equals lists of jobs and of managed shards.
    #[test]
    fn forecast_equals_a_list_of_jobs(steps in prop::collection::vec(step(), 1..40)) {
        let (forecast, mut model, mut orphans) = (Forecast::new(), Model::default(), Vec::new());
        for step in steps {
            model.apply(&forecast, &mut orphans, step);
            model.check(&forecast);
        }
    }
}
