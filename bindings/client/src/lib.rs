//! The trainer's side: connect or start a daemon, map the slab, decode ahead, reconnect.
