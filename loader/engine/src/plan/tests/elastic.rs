//! Order is a function (promise 5) and each sample comes once (promise 6), for every reader: whole
//! sequences are compared, read through as many sequences and shares as there are ranks.

use super::*;

/// A global batch: the (position, valid, sample) of each rank.
type Batch = Vec<Vec<(u64, bool, (u32, u64))>>;

/// A run of all ranks.
type Run = Vec<Batch>;

/// Inputs that do not depend on the reader.
#[derive(Debug, Clone)]
struct Job {
    /// Sample counts of the shards of each stream; one stream alone is no mixture.
    streams: Vec<Vec<u64>>,
    proportions: Vec<Proportion>,
    order: Order,
    lanes: u32,
    epoch: u64,
}

fn counts() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(prop_oneof![1 => Just(0_u64), 6 => 0_u64..80], 8..24)
        .prop_filter("samples", |counts| counts.iter().any(|count| *count > 0))
}

fn orders() -> impl Strategy<Value = (Order, u32)> {
    let epoch_samples = prop::option::of(1_u64..2500);
    (shuffles(), 1_u32..24, any::<u64>(), tails(), 1_u32..9, epoch_samples).prop_map(
        |(shuffle, window, seed, tail, lanes, epoch_samples)| {
            let lanes = if shuffle == Shuffle::Global { 1 } else { lanes };
            (Order { tail, epoch_samples, ..order(shuffle, window, seed) }, lanes)
        },
    )
}

fn single() -> impl Strategy<Value = Job> {
    (counts(), orders(), 0_u64..4).prop_map(|(counts, (order, lanes), epoch)| Job {
        streams: vec![counts],
        proportions: vec![],
        order,
        lanes,
        epoch,
    })
}

fn mixed() -> impl Strategy<Value = Job> {
    let streams = prop::collection::vec((counts(), 1_u32..300), 2..5);
    (streams, orders(), 0_u64..4, any::<bool>(), 1_u64..2500).prop_map(
        |(streams, (mut order, lanes), epoch, weights, samples)| {
            let (streams, shares): (Vec<_>, Vec<_>) = streams.into_iter().unzip();
            let proportions = shares.into_iter().map(|share| match weights {
                true => Proportion::Weight(f64::from(share) / 100.0),
                // Whole and half times.
                false => Proportion::Repeat(f64::from(share % 5 + 1) / 2.0),
            });
            if weights {
                order.epoch_samples = Some(samples);
            }
            order.lanes = Some(lanes);
            Job { streams, proportions: proportions.collect(), order, lanes, epoch }
        },
    )
}

fn jobs() -> impl Strategy<Value = Job> {
    prop_oneof![2 => single(), 1 => mixed()]
}

impl Job {
    fn plan(&self, order: &Order) -> Epoch {
        if self.proportions.is_empty() {
            let counts = self.streams[0].clone();
            let shards = u32::try_from(counts.len()).unwrap();
            return Epoch::One(Sequence::new(order, shards, Some(counts), self.lanes, self.epoch));
        }
        let streams =
            self.streams.iter().zip(&self.proportions).map(|(counts, proportion)| Stream {
                shards: u32::try_from(counts.len()).unwrap(),
                counts: Some(counts.clone()),
                proportion: *proportion,
            });
        Epoch::Mixed(Mixed::new(order, &streams.collect::<Vec<_>>(), &[], self.epoch).unwrap())
    }

    fn total(&self) -> u64 {
        self.plan(&self.order).total().unwrap()
    }

    /// The epoch's sequence without shares.
    fn whole(&self) -> Vec<(u32, u64)> {
        let mut plan = self.plan(&self.order);
        (0..self.total()).map(|position| sample(&mut plan, position)).collect()
    }

    fn run(&self, world_size: u32, batch_size: u32, base: u64) -> Run {
        let mut batches: Run = Vec::new();
        for rank in 0..world_size {
            let order = Order { rank, world_size, batch_size, ..self.order.clone() };
            let mut plan = self.plan(&order);
            let share = Share::new(&order, plan.lanes(), base);
            let total = plan.total().unwrap();
            batches.resize(share.batches(total) as usize, Vec::new());
            for (k, batch) in batches.iter_mut().enumerate() {
                let mine = share.positions(k as u64, Some(total));
                let read = mine.map(|(at, valid)| (at, valid, sample(&mut plan, at)));
                batch.push(read.collect());
            }
        }
        batches
    }
}

fn sample(plan: &mut Epoch, position: u64) -> (u32, u64) {
    match plan.locate(position, &|_| panic!("every count is known")) {
        Located::Sample { shard, ordinal } => (shard, ordinal),
        other => panic!("{other:?} at {position}"),
    }
}

/// The valid samples of each global batch, in the order of their positions.
fn global(run: &Run) -> Vec<Vec<(u64, (u32, u64))>> {
    let in_order = |batch: &Batch| {
        let valid = batch.iter().flatten().filter(|(_, valid, _)| *valid);
        let mut samples: Vec<_> = valid.map(|(position, _, sample)| (*position, *sample)).collect();
        samples.sort_unstable();
        samples
    };
    run.iter().map(in_order).collect()
}

fn samples(run: &Run) -> Vec<(u32, u64)> {
    global(run).into_iter().flatten().map(|(_, sample)| sample).collect()
}

/// Worlds whose batches are `batch_size` each while the global batch stays.
fn worlds_of(global_batch: u32) -> Vec<(u32, u32)> {
    (1..=global_batch)
        .filter(|world| global_batch.is_multiple_of(*world))
        .map(|world| (world, global_batch / world))
        .collect()
}

proptest! {
    #[test]
    fn equal_global_batches_are_the_same_for_every_world(
        job in jobs(), global_batch in prop::sample::select(vec![4_u32, 6, 8, 12, 24]), base: u64,
    ) {
        let base = base % job.total();
        let of_one = global(&job.run(1, global_batch, base));
        for (world, batch_size) in worlds_of(global_batch) {
            prop_assert_eq!(&global(&job.run(world, batch_size, base)), &of_one, "world {}", world);
        }
    }

    #[test]
    fn samples_do_not_depend_on_world_and_batch_size(
        job in jobs(), world in 1_u32..6, batch_size in 1_u32..9,
    ) {
        let whole = job.whole();
        let run = samples(&job.run(world, batch_size, 0));
        prop_assert_eq!(&run[..], &whole[..run.len()]);
        let dropped = whole.len() - run.len();
        let global_batch = (world * batch_size) as usize;
        prop_assert_eq!(
            dropped,
            if job.order.tail == Tail::Drop { whole.len() % global_batch } else { 0 }
        );
        // Each pass over a data set has each sample once.
        let mut first = 0;
        for counts in &job.streams {
            let shards = first..first + counts.len() as u32;
            first = shards.end;
            let mine: Vec<_> = whole.iter().filter(|(shard, _)| shards.contains(shard)).collect();
            for pass in mine.chunks(counts.iter().sum::<u64>() as usize) {
                let distinct: HashSet<_> = pass.iter().collect();
                prop_assert_eq!(distinct.len(), pass.len());
            }
        }
    }

    #[test]
    fn run_resumes_with_another_world_and_batch_size(
        job in jobs(), before in (1_u32..6, 1_u32..9), after in (1_u32..6, 1_u32..9), stop: u64,
    ) {
        let whole = job.whole();
        let first = global(&job.run(before.0, before.1, 0));
        // Whole batches, so that a position can be said; also where nothing is left.
        let full = first.iter().filter(|batch| batch.len() as u32 == before.0 * before.1).count();
        let taken = (stop % (full as u64 + 1)) as usize;
        let base = taken as u64 * u64::from(before.0 * before.1);
        let rest = job.run(after.0, after.1, base);
        let mut both: Vec<_> =
            first[..taken].iter().flatten().map(|(_, sample)| *sample).collect();
        both.extend(samples(&rest));
        prop_assert_eq!(&both[..], &whole[..both.len()]);
        let left = job.total() - base;
        let dropped = match job.order.tail {
            Tail::Drop => left % u64::from(after.0 * after.1),
            Tail::Even | Tail::Pad => 0,
        };
        prop_assert_eq!(both.len() as u64 + dropped, job.total());
    }

    #[test]
    fn ranks_make_equally_many_steps_of_equal_size(
        job in jobs(), world in 1_u32..7, batch_size in 1_u32..9, base: u64,
    ) {
        let base = base % job.total();
        let global_batch = u64::from(world * batch_size);
        for (k, batch) in job.run(world, batch_size, base).iter().enumerate() {
            prop_assert_eq!(batch.len(), world as usize, "all ranks make step {}", k);
            let left = (job.total() - base - k as u64 * global_batch).min(global_batch);
            let valid: Vec<u64> = batch
                .iter()
                .map(|rank| rank.iter().filter(|(_, valid, _)| *valid).count() as u64)
                .collect();
            prop_assert_eq!(valid.iter().sum::<u64>(), left);
            prop_assert!(valid.iter().max().unwrap() - valid.iter().min().unwrap() <= 1);
            for (rank, valid) in batch.iter().zip(valid) {
                let wanted = match job.order.tail {
                    Tail::Even => valid.max(1),
                    Tail::Drop | Tail::Pad => u64::from(batch_size),
                };
                prop_assert_eq!(rank.len() as u64, wanted);
            }
        }
    }
}

#[test]
fn ranks_with_whole_lanes_read_only_their_lanes() {
    // 7 shards of 9 are 63 samples over 4 lanes: a pass ends in the middle of a round.
    let counts = vec![9; 7];
    for base in [0, 1, 62, 63, 64, 130] {
        let mut read: Vec<HashSet<u64>> = Vec::new();
        for rank in 0..2 {
            let order = Order {
                rank,
                world_size: 2,
                epoch_samples: Some(300),
                ..order(Shuffle::Window, 4, 1)
            };
            let share = Share::new(&order, 4, base);
            assert_eq!((0..4).filter(|lane| share.owns(*lane)).count(), 2);
            let positions: Vec<u64> = (0..share.batches(300) - 1)
                .flat_map(|k| share.positions(k, Some(300)).collect::<Vec<_>>())
                .map(|(position, _)| position)
                .collect();
            let lanes = positions.iter().map(|position| position % 4).collect::<HashSet<_>>();
            assert!(lanes.iter().all(|lane| share.owns(*lane as u32)), "{lanes:?}");
            // Its shards are those that a look-ahead over its own lanes returns.
            let mut sequence = Sequence::new(&order, 7, Some(counts.clone()), 4, 0);
            for position in positions {
                let located = sequence.locate(position, &|_| panic!("every count is known"));
                let Located::Sample { shard, .. } = located else { panic!("{located:?}") };
                let ahead = sequence.upcoming(position, 7, |lane| share.owns(lane));
                assert!(ahead.contains(&shard), "{shard} at {position}, not in {ahead:?}");
            }
            read.push(lanes);
        }
        assert!(read[0].is_disjoint(&read[1]));
    }
}
