//! A mixture whose weights change during the job.
//!
//! A phase lasts from a sample of the job to the next phase's, over epochs; sample 0 is the first
//! of epoch 0. In each phase's part of an epoch every stream has its share to within one sample.
//! Constant weights start anew with each epoch, so a job whose weights change later has the order
//! of one whose weights do not until then. A stream without a share rests.

use forebay_error::{Error, ErrorKind, Result};
use forebay_wire::message::{Glide, Phase};

use super::turns::Mix;
use super::{WEIGHT_PARTS, rounded, weights};
use crate::plan::SAMPLES_MAX;

/// Most phases of a job: a change per minute for 45 days.
const PHASES_MAX: usize = 1 << 16;

/// Mixture of one epoch.
#[derive(Debug, Clone)]
pub(super) struct Phases {
    /// Phases that the epoch touches, in order.
    pieces: Vec<Piece>,
}

/// One phase's part of an epoch.
#[derive(Debug, Clone)]
struct Piece {
    /// The epoch's position at which it begins.
    from: u64,
    /// Positions of its glide before that.
    skipped: u64,
    /// Samples of each stream in the epoch before it.
    taken: Vec<u64>,
    mix: Mix,
    /// Streams of the mixture.
    streams: Vec<usize>,
    /// Samples of each of these in the skipped positions.
    earlier: Vec<u64>,
}

impl Phases {
    /// Makes a mixture in which each stream has its part of every period.
    ///
    /// # Errors
    /// As [`Mix::new`].
    pub(super) fn constant(parts: &[u64]) -> Result<Self> {
        let mix = Mix::new(parts)?;
        let streams = (0..parts.len()).collect();
        let none = vec![0; parts.len()];
        let piece = Piece { from: 0, skipped: 0, taken: none.clone(), mix, streams, earlier: none };
        Ok(Self { pieces: vec![piece] })
    }

    /// Makes the mixture of the `total` samples from sample `start` of the job on.
    ///
    /// # Errors
    /// `Invalid` for phases that are none; see also [`weights`].
    pub(super) fn new(phases: &[Phase], streams: usize, start: u64, total: u64) -> Result<Self> {
        check(phases, streams)?;
        let mut pieces: Vec<Piece> = Vec::new();
        let end = start.saturating_add(total);
        for (number, phase) in phases.iter().enumerate() {
            let next = phases.get(number + 1).map_or(u64::MAX, |next| next.from);
            if next <= start || phase.from >= end {
                continue;
            }
            let from = phase.from.saturating_sub(start);
            let taken = match pieces.last_mut() {
                Some(piece) => piece.before(from),
                None => vec![0; streams],
            };
            let (mut mix, streams) = mixture(phase).map_err(|error| error.at("phase", number))?;
            let skipped = match phase.glide {
                Some(_) => start.saturating_sub(phase.from),
                None => 0,
            };
            let earlier = mix.before(skipped);
            pieces.push(Piece { from, skipped, taken, mix, streams, earlier });
        }
        Ok(Self { pieces })
    }

    /// Returns the stream at `position`, and the number of its sample there.
    pub(super) fn at(&mut self, position: u64) -> (usize, u64) {
        let piece = self.piece(position);
        let (at, sample) = piece.mix.at(position - piece.from + piece.skipped);
        let stream = piece.streams[at];
        (stream, piece.taken[stream] + (sample - piece.earlier[at]))
    }

    /// Returns the number of samples of each stream before `position`.
    pub(super) fn before(&mut self, position: u64) -> Vec<u64> {
        self.piece(position).before(position)
    }

    /// Returns the first position that a sample of a stream may have; `u64::MAX` if the stream
    /// rests before that sample for the remainder of the epoch.
    pub(super) fn release(&self, stream: usize, sample: u64) -> u64 {
        // The first phase has none before it.
        let after = self.pieces.partition_point(|piece| piece.taken[stream] <= sample);
        let piece = &self.pieces[after - 1];
        let Some(at) = piece.streams.iter().position(|each| *each == stream) else {
            return u64::MAX;
        };
        let sample = piece.earlier[at] + (sample - piece.taken[stream]);
        piece.mix.release(at, sample).saturating_sub(piece.skipped).saturating_add(piece.from)
    }

    fn piece(&mut self, position: u64) -> &mut Piece {
        let after = self.pieces.partition_point(|piece| piece.from <= position);
        &mut self.pieces[after - 1]
    }
}

impl Piece {
    /// Returns the samples of each stream in the epoch before `position`, which is not before the
    /// piece.
    fn before(&mut self, position: u64) -> Vec<u64> {
        let mut taken = self.taken.clone();
        let all = self.mix.before(position - self.from + self.skipped);
        for ((stream, all), earlier) in self.streams.iter().zip(all).zip(&self.earlier) {
            taken[*stream] += all - earlier;
        }
        taken
    }
}

/// Returns the mixture of a phase, and its streams.
fn mixture(phase: &Phase) -> Result<(Mix, Vec<usize>)> {
    let Some(Glide { to, over }) = &phase.glide else {
        let streams = (0..phase.weights.len()).filter(|stream| phase.weights[*stream] > 0.0);
        let streams: Vec<usize> = streams.collect();
        let own: Vec<f64> = streams.iter().map(|stream| phase.weights[*stream]).collect();
        return Ok((Mix::new(&weights(&own)?)?, streams));
    };
    let (first, last) = (rounded(&phase.weights), rounded(to));
    let streams = (0..first.len()).filter(|stream| first[*stream] + last[*stream] > 0);
    let streams: Vec<usize> = streams.collect();
    let part = |of: &[u64], stream: usize| u32::try_from(of[stream]).expect("not above all parts");
    let shares = streams.iter().map(|stream| (part(&first, *stream), part(&last, *stream)));
    let parts = u32::try_from(WEIGHT_PARTS).expect("a million");
    Ok((Mix::gliding(shares, parts, *over), streams))
}

/// Rejects phases that do not cover the job, or whose weights give nothing to choose from.
fn check(phases: &[Phase], streams: usize) -> Result<()> {
    let invalid =
        |what: String, advice: &str| Err(Error::new(ErrorKind::Invalid, what).advise(advice));
    if phases.len() > PHASES_MAX {
        let what = format!("the weights change {} times", phases.len());
        return invalid(what, &format!("change them {PHASES_MAX} times at most"));
    }
    if phases.first().is_none_or(|first| first.from > 0) {
        return invalid("no weights hold at sample 0".into(), "give weights for sample 0");
    }
    for (number, phase) in phases.iter().enumerate() {
        let next = phases.get(number + 1).map(|next| next.from);
        if next.is_some_and(|next| next <= phase.from || next > SAMPLES_MAX) {
            let what = format!("other weights follow those of sample {} before it", phase.from);
            return invalid(what, "give ascending samples up to 2^48");
        }
        let Some(glide) = &phase.glide else { continue };
        let fits = next.is_some_and(|next| next - phase.from <= glide.over);
        if !fits || glide.over > SAMPLES_MAX {
            let what = format!("the glide of sample {} ends before its phase", phase.from);
            return invalid(what, "give weights for its end");
        }
    }
    let ends = phases
        .iter()
        .flat_map(|phase| [Some(&phase.weights), phase.glide.as_ref().map(|glide| &glide.to)]);
    for weights in ends.flatten() {
        if weights.len() != streams {
            let what = format!("{} weights are given for {streams} streams", weights.len());
            return invalid(what, "give one for each stream");
        }
        if let Some(weight) = weights.iter().find(|weight| !(weight.is_finite() && **weight >= 0.0))
        {
            let what = format!("weight {weight} is not a number of 0 or more");
            return invalid(what, "give numbers from 0 on");
        }
        if weights.iter().all(|weight| *weight == 0.0) {
            return invalid("all weights are 0".into(), "give one stream more at any time");
        }
    }
    Ok(())
}
