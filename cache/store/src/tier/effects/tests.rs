//! Sums of bytes under old and new rules.

use super::*;

fn owner(at: usize, max: Option<u64>) -> (usize, String, Option<u64>) {
    (at, format!("owner {at}"), max)
}

#[test]
fn bytes_move_between_owners() {
    let mut sums = Sums::default();
    sums.add(0, 0, 10, (0, 0));
    sums.add(0, 1, 20, (20, 0));
    sums.add(1, 1, 40, (0, 40));
    sums.add(2, 0, 80, (0, 0));
    let before = [owner(0, None), owner(1, None), owner(2, None)];
    let effects = sums.effects(&before, vec![owner(1, Some(50)), owner(3, None), owner(0, None)]);
    let names: Vec<_> = effects.iter().map(|effect| effect.name.as_str()).collect();
    // Removed owners come last.
    assert_eq!(names, ["owner 1", "owner 3", "owner 0", "owner 2"]);
    let [one, new, zero, gone] = effects.try_into().expect("four owners");
    assert_eq!((one.before_bytes, one.after_bytes), (Some(40), Some(60)));
    assert_eq!((one.comes_bytes, one.goes_bytes), (20, 0));
    assert_eq!((one.over_bytes, one.unwanted_bytes, one.stale_bytes), (10, 20, 40));
    assert_eq!((new.before_bytes, new.after_bytes), (None, Some(0)));
    assert_eq!((zero.before_bytes, zero.after_bytes), (Some(30), Some(90)));
    assert_eq!((zero.comes_bytes, zero.goes_bytes, zero.over_bytes), (80, 20, 0));
    assert_eq!((gone.before_bytes, gone.after_bytes, gone.goes_bytes), (Some(80), None, 80));
}

#[test]
fn unchanged_rules_move_nothing() {
    let mut sums = Sums::default();
    (0..5).for_each(|at| sums.add(at, at, 7, (0, 0)));
    let owners: Vec<_> = (0..5).map(|at| owner(at, Some(7))).collect();
    for effect in sums.effects(&owners, owners.clone()) {
        assert_eq!((effect.before_bytes, effect.after_bytes), (Some(7), Some(7)));
        let moved = (effect.comes_bytes, effect.goes_bytes, effect.over_bytes);
        assert_eq!(moved, (0, 0, 0), "{}", effect.name);
    }
}
