//! What daemon and trainer agree on: messages, descriptors, and the mapped slab.
