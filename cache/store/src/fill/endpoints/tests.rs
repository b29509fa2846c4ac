//! Slow endpoints: their turns, and the speed that makes them slow.

use std::pin::pin;

use futures::FutureExt;

use super::*;

fn turn<'a>(endpoints: &'a Endpoints, name: &str, rank: &Rank) -> Option<EndpointTurn<'a>> {
    Some(endpoints.enter(name).turn(rank).now_or_never()?.unwrap())
}

#[test]
fn slow_endpoint_has_one_turn_and_others_any_number() {
    let (endpoints, rank) = (Endpoints::new(), Rank::ahead(1));
    let first = turn(&endpoints, "a", &rank).unwrap();
    let second = turn(&endpoints, "a", &rank).unwrap();
    first.mark_slow(true);
    assert!(endpoints.is_slow("a") && second.is_slow() && !endpoints.is_slow("b"));
    drop(second);
    assert!(turn(&endpoints, "a", &rank).is_none());
    assert!(turn(&endpoints, "b", &rank).is_some());
    let mut waiting = pin!(endpoints.enter("a").turn(&rank));
    assert!((&mut waiting).now_or_never().is_none());
    first.mark_slow(false);
    assert!(waiting.now_or_never().is_some());
    drop(first);
    assert!(endpoints.lock().is_empty(), "nothing is kept of an endpoint without fills");
}

#[test]
fn fill_of_another_endpoint_keeps_waiting() {
    let (endpoints, rank) = (Endpoints::new(), Rank::ahead(1));
    let [mine, same, other] = ["a", "a", "b"].map(|name| turn(&endpoints, name, &rank).unwrap());
    let same = same.wait_for_place();
    assert!(!mine.keeps_others_waiting());
    let other = other.wait_for_place();
    assert!(mine.keeps_others_waiting());
    drop((same, other));
    assert!(!mine.keeps_others_waiting());
}

#[tokio::test]
async fn pace_is_known_after_the_watched_time() {
    let (mut pulse, start) = (Pulse::new(), Instant::now());
    let mut at = |ms: u64, bytes| pulse.count(bytes, start + Duration::from_millis(ms));
    assert_eq!([at(0, 0), at(500, 9), at(1000, 9), at(1500, 9)], [Pace::Unknown; 4]);
    assert_eq!(at(2000, 9), Pace::Slow);
    assert_eq!(at(2500, SLOWEST_BYTES + 9), Pace::Fast);
    assert_eq!(at(4600, SLOWEST_BYTES + 9), Pace::Unknown, "nothing was asked for in between");
}
