//! Check of limits: can all promises to data sets and tenants be kept?

use forebay_error::{Error, ErrorKind, Result};

use crate::dataset::Dataset;
use crate::tenant::Tenant;

/// Rejects rules that `tiers`, given by name and capacity, cannot all keep.
///
/// # Errors
/// `Invalid` naming the data set or tenant and the options.
pub fn check_promises(
    datasets: &[Dataset],
    tenants: &[Tenant],
    tiers: &[(&str, u64)],
) -> Result<()> {
    self::datasets(datasets, tiers)?;
    self::tenants(tenants, tiers)
}

/// Rejects data sets whose rules `tiers` cannot all keep.
fn datasets(datasets: &[Dataset], tiers: &[(&str, u64)]) -> Result<()> {
    for set in datasets {
        set.check()?;
        let known = |name: &&String| !tiers.iter().any(|(tier, _)| tier == name);
        if let Some(unknown) = set.tiers.iter().find(known) {
            return Err(Error::new(ErrorKind::Invalid, "the tier does not exist")
                .at("dataset", &set.name)
                .at("tier", unknown));
        }
    }
    // Checks all tiers together, and each set of tiers that a data set is bound to: data sets bound
    // to it must fit.
    let everywhere: Vec<&str> = tiers.iter().map(|(name, _)| *name).collect();
    let choices = datasets.iter().filter(|set| !set.tiers.is_empty());
    let choices = choices.map(|set| set.tiers.iter().map(String::as_str).collect());
    for choice in std::iter::once(everywhere).chain(choices) {
        let within = |set: &&Dataset| match set.tiers.is_empty() {
            true => tiers.iter().all(|(name, _)| choice.contains(name)),
            false => set.tiers.iter().all(|name| choice.contains(&name.as_str())),
        };
        let chosen = tiers.iter().filter(|(name, _)| choice.contains(name));
        let capacity = total(chosen.map(|(_, bytes)| *bytes));
        let bound = || datasets.iter().filter(within);
        let refuse = |what: &str, promised: u64, advice: &str| {
            Err(Error::new(ErrorKind::Invalid, what.to_owned())
                .at("tiers", choice.join(", "))
                .at("capacity", capacity)
                .at("promised", promised)
                .advise(advice.to_owned()))
        };
        let minima = total(bound().map(|set| set.min_bytes));
        if minima > capacity {
            let advice = "lower quota.min, or raise the tiers' capacity";
            return refuse("the data sets' minima exceed the capacity", minima, advice);
        }
        // A pinned data set may grow to its maximum, which must fit beside the minimums of the
        // others.
        let promised = total(bound().map(|set| match (set.pin, set.max_bytes) {
            (true, Some(max)) => max,
            _ => set.min_bytes,
        }));
        if promised > capacity {
            let advice = "lower the pinned data sets' quota.max, or raise the tiers' capacity";
            return refuse("the pinned data sets exceed the capacity", promised, advice);
        }
    }
    Ok(())
}

/// Rejects tenants whose limits `tiers` cannot all keep.
fn tenants(tenants: &[Tenant], tiers: &[(&str, u64)]) -> Result<()> {
    tenants.iter().try_for_each(Tenant::check)?;
    let capacity = total(tiers.iter().map(|(_, bytes)| *bytes));
    let minima = total(tenants.iter().map(|tenant| tenant.min_bytes));
    match minima > capacity {
        false => Ok(()),
        true => Err(Error::new(ErrorKind::Invalid, "the tenants' minima exceed the capacity")
            .at("capacity", capacity)
            .at("promised", minima)
            .advise("lower the tenants' quota.min, or raise the tiers' capacity")),
    }
}

fn total(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}
