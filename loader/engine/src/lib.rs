//! How bytes become batches: the plan, and the session that fills slots by it.

pub mod plan;
