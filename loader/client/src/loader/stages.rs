//! Stages of a batch in a decode thread.

use std::ops::Range;

use forebay_wire::message::{Cause, Stage};

/// The stages of a batch that was with a decode thread for so long, of which its bytes were
/// `brought` to a GPU in these stretches, in their order.
pub(super) fn decoding(
    during: Range<u64>,
    brought: impl IntoIterator<Item = Range<u64>>,
) -> impl Iterator<Item = Stage> {
    let mut at = during.start;
    let mut stages = Vec::new();
    for Range { start, end } in brought {
        stages.push(Stage { cause: Cause::Decode, start_ns: at, end_ns: start });
        stages.push(Stage { cause: Cause::H2d, start_ns: start, end_ns: end });
        at = end;
    }
    stages.push(Stage { cause: Cause::Decode, start_ns: at, end_ns: during.end });
    stages.into_iter().filter(|stage| stage.end_ns > stage.start_ns)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn copies_to_a_gpu_are_separated_from_decoding() {
        let told = |brought: Vec<Range<u64>>| -> Vec<_> {
            decoding(10..50, brought).map(|s| (s.cause, s.start_ns, s.end_ns)).collect()
        };
        assert_eq!(told(Vec::new()), [(Cause::Decode, 10, 50)]);
        let expected = [
            (Cause::Decode, 10, 20),
            (Cause::H2d, 20, 25),
            (Cause::H2d, 25, 30),
            (Cause::Decode, 30, 50),
        ];
        assert_eq!(told(vec![20..25, 25..30]), expected);
        assert_eq!(decoding(5..5, []).count(), 0);
    }
}
