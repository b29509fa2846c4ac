use proptest::prelude::*;

use super::*;

/// Natural logarithm's median and spread of made-up documents: half are below a thousand tokens,
/// one in forty has seven times as many.
const MEDIAN: f64 = 1000.0;
const SIGMA: f64 = 1.0;

/// Lengths that are log-normal, at most `most`.
pub(in crate::plan::bins) fn log_normal(count: usize, most: u32, seed: u64) -> Vec<u32> {
    let key = Key::new(seed);
    let unit = |at: u64| (permute(key, at, 1 << 32) as f64 + 0.5) / (1_u64 << 32) as f64;
    let normal = |at: u64| {
        // Box and Muller's transform.
        let (one, other) = (unit(2 * at), unit(2 * at + 1));
        (-2.0 * one.ln()).sqrt() * (std::f64::consts::TAU * other).cos()
    };
    let length = |at: u64| (MEDIAN * (SIGMA * normal(at)).exp()) as u32;
    (0..count as u64).map(|at| length(at).clamp(1, most)).collect()
}

fn rule(budget: u32, is_packed: bool, buckets: &[u32]) -> BinRule {
    BinRule { budget, lookahead: 1, is_packed, buckets: buckets.to_vec() }
}

fn turn(keeps_order: bool, is_ascending: bool) -> Turn {
    Turn { key: Key::new(7), keeps_order, is_ascending }
}

fn real(bin: &Bin, lengths: &[u32]) -> u64 {
    bin.samples.iter().map(|place| u64::from(lengths[*place as usize])).sum()
}

/// Shares of tokens that are padding, and of steps of `world` ranks that differ by more than 5 %.
fn padding_and_uneven(bins: &[Bin], lengths: &[u32], world: usize) -> (f64, f64) {
    let all: u64 = bins.iter().map(|bin| bin.tokens).sum();
    let rows: u64 = bins.iter().map(|bin| real(bin, lengths)).sum();
    let uneven = |step: &[Bin]| {
        let sizes = || step.iter().map(|bin| bin.tokens);
        sizes().max() > sizes().min().map(|least| least + least / 20)
    };
    let steps = bins.chunks_exact(world);
    let (all_steps, uneven) = (steps.len(), steps.filter(|step| uneven(step)).count());
    (1.0 - rows as f64 / all as f64, uneven as f64 / all_steps as f64)
}

#[test]
fn packed_bins_are_full_and_equal() {
    let lengths = log_normal(8192, 32_768, 1);
    let bins = compose(&lengths, &rule(65_536, true, &[]), turn(false, false));
    let sum: u64 = lengths.iter().map(|length| u64::from(*length)).sum();
    assert!(bins.len() as u64 <= sum.div_ceil(65_536) + 1);
    let sizes = || bins.iter().map(|bin| bin.tokens);
    let (most, least) = (sizes().max().unwrap(), sizes().min().unwrap());
    assert!(most <= 65_536 && most - least <= most / 100, "{least} to {most}");
}

#[test]
fn padded_bins_pad_little_and_pair_equal_sizes() {
    let lengths = log_normal(8192, 32_768, 2);
    let bins = compose(&lengths, &rule(65_536, false, &[]), turn(false, false));
    let (padding, uneven) = padding_and_uneven(&bins, &lengths, 8);
    println!("padding {padding}, uneven {uneven}");
    assert!(padding <= 0.03, "{padding}");
    assert!(uneven <= 0.15, "{uneven}");
}

#[test]
fn samples_as_long_as_the_budget_are_packed_by_best_fit() {
    // Two in three leave room for one of the others, which evenly distributed bins do not find.
    let lengths: Vec<u32> = (0..300).map(|at| if at % 3 == 0 { 40 } else { 61 }).collect();
    let bins = compose(&lengths, &rule(101, true, &[]), turn(false, false));
    assert_eq!(bins.len(), 200);
}

#[test]
fn buckets_are_the_widths_of_rows() {
    let lengths = log_normal(1000, 4096, 3);
    let buckets = [256, 1024, 4096];
    let bins = compose(&lengths, &rule(8192, false, &buckets), turn(true, false));
    for bin in &bins {
        let width = bin.tokens / bin.samples.len() as u64;
        assert!(buckets.contains(&(width as u32)));
        let longest = bin.samples.iter().map(|place| lengths[*place as usize]).max().unwrap();
        assert_eq!(super::width(longest, &rule(8192, false, &buckets)), width as u32);
        assert!(bin.tokens <= 8192);
    }
}

#[test]
fn every_other_window_is_ascending() {
    let lengths = log_normal(1000, 4096, 4);
    let sizes = |is_ascending| {
        let bins = compose(&lengths, &rule(8192, false, &[]), turn(true, is_ascending));
        (bins[0].tokens, bins[bins.len() - 1].tokens)
    };
    let (down, up) = (sizes(false), sizes(true));
    assert!(down.0 >= down.1 && up.0 <= up.1, "{down:?} {up:?}");
}

proptest! {
    #[test]
    fn every_sample_is_in_one_bin_within_the_budget(
        lengths in prop::collection::vec(0_u32..300, 1..400),
        budget in 1_u32..400,
        is_packed: bool,
        keeps_order: bool,
        is_ascending: bool,
        buckets in prop::collection::btree_set(1_u32..400, 0..5),
    ) {
        let buckets: Vec<u32> = if is_packed { Vec::new() } else { buckets.into_iter().collect() };
        let rule = rule(budget, is_packed, &buckets);
        let bins = compose(&lengths, &rule, turn(keeps_order, is_ascending));
        let mut seen = vec![false; lengths.len()];
        for bin in &bins {
            prop_assert!(!bin.samples.is_empty());
            prop_assert!(bin.samples.is_sorted());
            for place in &bin.samples {
                prop_assert!(!std::mem::replace(&mut seen[*place as usize], true));
            }
            prop_assert!(bin.tokens <= u64::from(budget) || bin.samples.len() == 1);
            prop_assert!(bin.tokens >= real(bin, &lengths));
            if is_packed {
                let sum: u64 = bin
                    .samples
                    .iter()
                    .map(|place| u64::from(lengths[*place as usize].max(1)))
                    .sum();
                prop_assert_eq!(bin.tokens, sum);
            }
        }
        prop_assert!(seen.iter().all(|seen| *seen));
    }
}
