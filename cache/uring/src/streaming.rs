//! Copies past the processor's caches.
//!
//! An ordinary store reads the line that it overwrites, and evicts another. Bytes that nobody reads
//! before as many others have come gain nothing by lying in a cache: written past it, they cost the
//! memory one transfer and not two.

/// Bytes of a cache line, which is written as a whole.
const LINE: usize = 64;

/// Copies `from` to `into` past the caches, where the processor can: for bytes that are read next
/// when the caches hold others.
///
/// # Panics
/// If the lengths differ.
pub fn copy_past_caches(from: &[u8], into: &mut [u8]) {
    assert_eq!(from.len(), into.len(), "a copy has the length of its source");
    let head = into.as_ptr().align_offset(LINE).min(into.len());
    let (from_head, from) = from.split_at(head);
    let (into_head, into) = into.split_at_mut(head);
    into_head.copy_from_slice(from_head);
    let lines = into.len() / LINE * LINE;
    let (from_lines, from_tail) = from.split_at(lines);
    let (into_lines, into_tail) = into.split_at_mut(lines);
    copy_lines(from_lines, into_lines);
    into_tail.copy_from_slice(from_tail);
}

/// Copies whole lines to a place that begins at one. Both slices have one length.
#[cfg(target_arch = "x86_64")]
fn copy_lines(from: &[u8], into: &mut [u8]) {
    use std::arch::x86_64::{__m128i, _mm_loadu_si128, _mm_sfence, _mm_stream_si128};

    let lines = into.len() / LINE;
    let mut from = from.as_ptr().cast::<__m128i>();
    let mut into = into.as_mut_ptr().cast::<__m128i>();
    // Plain pointers: iterators cost more than the copy where a build does not inline them.
    for _ in 0..lines {
        // SAFETY: a line has four times 16 bytes, and `lines` of them are in either slice. Loads
        // need no alignment; the caller aligned the place, and stores need 16 bytes.
        unsafe {
            let line = (
                _mm_loadu_si128(from),
                _mm_loadu_si128(from.add(1)),
                _mm_loadu_si128(from.add(2)),
                _mm_loadu_si128(from.add(3)),
            );
            _mm_stream_si128(into, line.0);
            _mm_stream_si128(into.add(1), line.1);
            _mm_stream_si128(into.add(2), line.2);
            _mm_stream_si128(into.add(3), line.3);
            from = from.add(LINE / size_of::<__m128i>());
            into = into.add(LINE / size_of::<__m128i>());
        }
    }
    // Such stores are not ordered with later ones, by which other threads learn of the bytes.
    // SAFETY: every processor of this architecture has the instruction.
    unsafe { _mm_sfence() };
}

#[cfg(not(target_arch = "x86_64"))]
fn copy_lines(from: &[u8], into: &mut [u8]) {
    into.copy_from_slice(from);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_arrive_whole_at_any_place() {
        let from: Vec<u8> = (0..1000_u32).map(|n| (n * 7) as u8).collect();
        for start in [0, 1, 15, 16, 63, 64, 65] {
            for len in [0, 1, 63, 64, 65, 127, 128, 500, 900] {
                let mut into = vec![0xEE; 1100];
                copy_past_caches(&from[3..3 + len], &mut into[start..start + len]);
                assert_eq!(into[start..start + len], from[3..3 + len], "{len} at {start}");
                let (before, behind) = (&into[..start], &into[start + len..]);
                assert!(before.iter().chain(behind).all(|byte| *byte == 0xEE), "{len} at {start}");
            }
        }
    }

    #[test]
    #[should_panic(expected = "length")]
    fn copy_of_another_length_panics() {
        copy_past_caches(&[1; 3], &mut [0; 4]);
    }
}
