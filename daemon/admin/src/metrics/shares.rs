//! Families of data sets and tenants: what they hold, and may hold. Those of the configuration, and
//! the rest.

use forebay_store::Holding;

use super::family::{Family, Sample, Together};

pub(super) const FAMILIES: &[Family] = &[
    Family::gauge(
        "forebay_dataset_used_bytes",
        &["dataset"],
        "Bytes reserved for the data set on all tiers; `(rest)` is for shards without one.",
        |status| each(&status.cache.holdings.datasets, |of| Some(of.used_bytes)),
    ),
    Family::gauge(
        "forebay_dataset_limit_bytes",
        &["dataset"],
        "Quota of the data set in bytes, if it has one.",
        |status| each(&status.cache.holdings.datasets, |of| of.max_bytes),
    )
    // A limit of some holders means nothing beside the sum of all.
    .together(Together::Untold),
    Family::gauge(
        "forebay_dataset_shards",
        &["dataset"],
        "Shards of the data set on all tiers, including those in flight.",
        |status| each(&status.cache.holdings.datasets, |of| Some(of.shards as u64)),
    ),
    Family::gauge(
        "forebay_tenant_used_bytes",
        &["tenant"],
        "Bytes reserved for shards the tenant fetched; `(rest)` is for shards without a tenant.",
        |status| each(&status.cache.holdings.tenants, |of| Some(of.used_bytes)),
    ),
    Family::gauge(
        "forebay_tenant_limit_bytes",
        &["tenant"],
        "Quota of the tenant in bytes, if it has one.",
        |status| each(&status.cache.holdings.tenants, |of| of.max_bytes),
    )
    // A limit of some holders means nothing beside the sum of all.
    .together(Together::Untold),
    Family::gauge(
        "forebay_tenant_shards",
        &["tenant"],
        "Shards the tenant fetched, on all tiers, including those in flight.",
        |status| each(&status.cache.holdings.tenants, |of| Some(of.shards as u64)),
    ),
];

fn each(holdings: &[Holding], of: fn(&Holding) -> Option<u64>) -> Vec<Sample> {
    let sample = |holding: &Holding| Some(Sample::new([&*holding.name], of(holding)?));
    holdings.iter().filter_map(sample).collect()
}
