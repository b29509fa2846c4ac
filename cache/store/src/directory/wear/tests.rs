//! Saved write allowance: read back, or ignored if it is damaged.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use proptest::prelude::*;

use super::*;
use crate::directory::tests::open;

fn at(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
}

#[test]
fn damaged_allowance_is_no_allowance() {
    let (root, directory) = open();
    assert_eq!(directory.load_wear(), None);
    let path = root.path().join("WEAR");
    let long = format!("1 {}\n", "0".repeat(LINE));
    for text in [
        "",
        "\n",
        "17\n",
        "17 \n",
        " 17\n",
        "17 18 19\n",
        "17\t18\n",
        "17 -18\n",
        "1.5 18\n",
        "9223372036854775808 18\n",
        "-9223372036854775809 18\n",
        // Later than any time of the system.
        "17 18446744073709551615\n",
        &long,
    ] {
        fs::write(&path, text).unwrap();
        assert_eq!(directory.load_wear(), None, "{text:?}");
    }
    fs::write(&path, b"17 \xff18\n").unwrap();
    assert_eq!(directory.load_wear(), None);
    // A torn line lacks its end, not its numbers.
    fs::write(&path, "-17 18").unwrap();
    assert_eq!(directory.load_wear(), Some((-17, at(18))));
}

#[test]
fn time_before_1970_is_saved_as_1970() {
    let (_root, directory) = open();
    directory.save_wear(5, at(0) - Duration::from_secs(9)).unwrap();
    assert_eq!(directory.load_wear(), Some((5, at(0))));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// A saved allowance is read back to the second, overdrawn or not.
    #[test]
    fn allowance_survives_a_restart(
        left in any::<i64>(),
        seconds in 0..1_u64 << 40,
        nanos in 0..1_000_000_000_u32,
    ) {
        let (_root, directory) = open();
        directory.save_wear(1, at(1)).unwrap();
        directory.save_wear(left, at(seconds) + Duration::from_nanos(u64::from(nanos))).unwrap();
        prop_assert_eq!(directory.load_wear(), Some((left, at(seconds))));
    }
}
