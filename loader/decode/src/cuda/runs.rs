//! Copies of a batch: the files that lie side by side in the daemon's memory go over together.

/// Largest gap that is copied along instead of making two copies: a copy costs the host some two
/// microseconds, in which the bus moves this many bytes.
const GAP_MAX: usize = 64 << 10;

/// Bytes copied at once, and the offsets of files in them.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Run<'a> {
    pub(super) bytes: &'a [u8],
    pub(super) files: Vec<(usize, usize)>,
}

/// Groups `files` into copies: neighbours in `around` together, others alone.
pub(super) fn runs<'a>(files: &[&'a [u8]], around: &'a [u8]) -> Vec<Run<'a>> {
    let base = around.as_ptr() as usize;
    let place = |file: &[u8]| {
        let from = (file.as_ptr() as usize).checked_sub(base)?;
        (from + file.len() <= around.len()).then_some(from)
    };
    let mut order: Vec<(Option<usize>, usize)> =
        files.iter().enumerate().map(|(index, file)| (place(file), index)).collect();
    order.sort_unstable();
    let mut runs: Vec<Run<'a>> = Vec::new();
    // Range of the last run in `around`.
    let mut last: Option<(usize, usize)> = None;
    for (from, index) in order {
        let Some(from) = from else {
            runs.push(Run { bytes: files[index], files: vec![(index, 0)] });
            continue;
        };
        let to = from + files[index].len();
        match (&mut last, runs.last_mut()) {
            (Some((begin, end)), Some(run)) if from <= *end + GAP_MAX => {
                *end = to.max(*end);
                run.bytes = &around[*begin..*end];
                run.files.push((index, from - *begin));
            }
            _ => {
                last = Some((from, to));
                runs.push(Run { bytes: &around[from..to], files: vec![(index, 0)] });
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_files_are_copied_in_one_run() {
        let around = vec![7_u8; 4 * GAP_MAX];
        let stranger = [9_u8; 10];
        let file = |from: usize, to: usize| &around[from..to];
        let far = 2 * GAP_MAX + 200;
        let files =
            [file(far, far + 10), file(100, 200), &stranger[..], file(0, 50), file(200, 201)];
        let runs = runs(&files, &around);
        let shown: Vec<_> =
            runs.iter().map(|run| (run.bytes.as_ptr(), run.bytes.len(), &run.files[..])).collect();
        assert_eq!(
            shown,
            [
                (stranger.as_ptr(), 10, &[(2, 0)][..]),
                (around.as_ptr(), 201, &[(3, 0), (1, 100), (4, 200)][..]),
                (around[far..].as_ptr(), 10, &[(0, 0)][..]),
            ]
        );
    }

    #[test]
    fn files_outside_the_slab_are_copied_one_by_one() {
        let (one, two) = ([1_u8; 3], [2_u8; 4]);
        let runs = runs(&[&one, &two], &[]);
        assert_eq!(runs.iter().map(|run| run.bytes).collect::<Vec<_>>(), [&one[..], &two[..]]);
    }
}
