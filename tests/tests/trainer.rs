//! What a trainer makes of the messages of its daemon, in orders that a real daemon keeps to only in
//! rare moments.

#![allow(clippy::unwrap_used, reason = "a test's helpers stop at the first surprise")]

use forebay_client::{Batch, Loader, Next};
use forebay_tests::{Origin, Peer, Scripted, job, loader, next};
use forebay_wire::message::Reply;

/// A loader at a scripted daemon, and that daemon's end of it.
fn connected(daemon: &Scripted) -> (Loader, Peer) {
    std::thread::scope(|scope| {
        let open = job(&Origin::new(), Origin::urls(1));
        let loader = scope.spawn(|| loader(daemon.address(), open).unwrap());
        let mut peer = daemon.accept();
        peer.register();
        (loader.join().unwrap(), peer)
    })
}

fn batch(loader: &Loader) -> Box<Batch> {
    match next(loader).unwrap() {
        Next::Batch(batch) => batch,
        Next::End { .. } => panic!("the epoch ended"),
    }
}

/// Bears the rule of DESIGN §5 that an oversized batch renegotiates the slab: the new one is
/// announced while batches in the old one are still being read.
#[test]
fn batches_in_the_slab_before_may_follow_a_new_slab() {
    let daemon = Scripted::new();
    let (loader, mut peer) = connected(&daemon);
    loader.start(0, 0);
    let (run, ..) = peer.started();
    peer.slab(1, 4096, 4);
    peer.batch(run, 0, 1);
    peer.slab(2, 8192, 4);
    peer.batch(run, 1, 1);
    peer.batch(run, 2, 2);
    for index in 0..3 {
        assert_eq!(batch(&loader).index, index);
    }
    assert_eq!(loader.stats().reconnects, 0);
}

/// Bears promise 7: the end of an epoch that nobody wants any more, come late, does not make the
/// trainer forget the one it wants when its daemon dies.
#[test]
fn the_late_end_of_an_abandoned_epoch_is_not_the_end_of_the_next() {
    let end = |run| Reply::End { run, batches: 1, samples: 1, errors: Vec::new() };
    let failed = |run| {
        let error = forebay_error::Error::new(forebay_error::ErrorKind::Corrupt, "no matter");
        Reply::Failed { run: Some(run), error }
    };
    for last_words in [&end as &dyn Fn(u64) -> Reply, &failed] {
        let daemon = Scripted::new();
        let (loader, mut peer) = connected(&daemon);
        loader.start(0, 0);
        let (abandoned, ..) = peer.started();
        loader.start(1, 0);
        let (run, epoch, _) = peer.started();
        assert_eq!(epoch, 1);
        peer.slab(1, 4096, 4);
        peer.batch(run, 0, 1);
        peer.say(&last_words(abandoned));
        assert_eq!(batch(&loader).index, 0);
        drop(peer);
        let mut peer = daemon.accept();
        peer.register();
        assert_eq!(peer.started(), (run, 1, 1), "the epoch goes on where it was");
        peer.slab(1, 4096, 4);
        peer.batch(run, 1, 1);
        assert_eq!(batch(&loader).index, 1);
    }
}
