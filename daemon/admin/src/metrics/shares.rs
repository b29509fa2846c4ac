//! Families of data sets and tenants: what they hold, and may hold. Those of the configuration, and
//! the rest.

use forebay_store::Holding;

use super::family::{Family, Sample, Together};

pub(super) const FAMILIES: &[Family] = &[
    Family::gauge(
        "forebay_dataset_used_bytes",
        &["dataset"],
        "Bytes reserved for the data set on all tiers; `(rest)` is what belongs to none.",
        |status| each(&status.cache.holdings.datasets, |of| Some(of.used_bytes)),
    ),
    Family::gauge(
        "forebay_dataset_limit_bytes",
        &["dataset"],
        "Bytes that the data set may hold, where its quota says so.",
        |status| each(&status.cache.holdings.datasets, |of| of.max_bytes),
    )
    // A limit of some holders means nothing beside the sum of all.
    .together(Together::Untold),
    Family::gauge(
        "forebay_dataset_shards",
        &["dataset"],
        "Shards of the data set on all tiers, arriving ones included.",
        |status| each(&status.cache.holdings.datasets, |of| Some(of.shards as u64)),
    ),
    Family::gauge(
        "forebay_tenant_used_bytes",
        &["tenant"],
        "Bytes reserved for what the tenant brought in; `(rest)` is what no tenant did.",
        |status| each(&status.cache.holdings.tenants, |of| Some(of.used_bytes)),
    ),
    Family::gauge(
        "forebay_tenant_limit_bytes",
        &["tenant"],
        "Bytes that the tenant may hold, where its quota says so.",
        |status| each(&status.cache.holdings.tenants, |of| of.max_bytes),
    )
    // A limit of some holders means nothing beside the sum of all.
    .together(Together::Untold),
    Family::gauge(
        "forebay_tenant_shards",
        &["tenant"],
        "Shards that the tenant brought in, on all tiers, arriving ones included.",
        |status| each(&status.cache.holdings.tenants, |of| Some(of.shards as u64)),
    ),
];

fn each(holdings: &[Holding], of: fn(&Holding) -> Option<u64>) -> Vec<Sample> {
    let sample = |holding: &Holding| Some(Sample::new([&*holding.name], of(holding)?));
    holdings.iter().filter_map(sample).collect()
}
