//! Check of limits: can all promises to data sets, tenants and checkpoints be kept?

use forebay_error::{Error, ErrorKind, Result};

use crate::checkpoint_rule::CheckpointRule;
use crate::dataset::Dataset;
use crate::tenant::Tenant;

/// Rejects rules that `tiers`, given by name and capacity, cannot all keep.
///
/// # Errors
/// `Invalid` naming the data set, tenant or checkpoint rule and the options.
pub fn check_promises(
    datasets: &[Dataset],
    tenants: &[Tenant],
    checkpoints: &[CheckpointRule],
    tiers: &[(&str, u64)],
) -> Result<()> {
    self::datasets(datasets, tiers)?;
    self::tenants(tenants, tiers)?;
    self::checkpoints(checkpoints, datasets, tiers)
}

/// Tiers to which rules are bound: what these promise must fit there.
struct Choice<'a> {
    names: Vec<&'a str>,
    capacity: u64,
    is_all: bool,
}

impl<'a> Choice<'a> {
    /// Returns all tiers together, and each set of tiers that is named.
    fn all(
        tiers: &'a [(&'a str, u64)],
        named: impl Iterator<Item = &'a Vec<String>>,
    ) -> impl Iterator<Item = Self> {
        let everywhere: Vec<&str> = tiers.iter().map(|(name, _)| *name).collect();
        let named = named.filter(|names| !names.is_empty());
        let named = named.map(|names| names.iter().map(String::as_str).collect());
        std::iter::once(everywhere).chain(named).map(|names: Vec<&str>| {
            let chosen = tiers.iter().filter(|(name, _)| names.contains(name));
            let capacity = total(chosen.map(|(_, bytes)| *bytes));
            let is_all = tiers.iter().all(|(name, _)| names.contains(name));
            Self { names, capacity, is_all }
        })
    }

    /// Returns true if a rule of these tiers can use no others; none named: it can use any.
    fn binds(&self, named: &[String]) -> bool {
        match named.is_empty() {
            true => self.is_all,
            false => named.iter().all(|name| self.names.contains(&name.as_str())),
        }
    }

    /// Rejects promises beyond the capacity.
    fn fits(&self, promised: u64, what: &str, advice: &str) -> Result<()> {
        match promised > self.capacity {
            false => Ok(()),
            true => Err(Error::new(ErrorKind::Invalid, what.to_owned())
                .at("tiers", self.names.join(", "))
                .at("capacity", self.capacity)
                .at("promised", promised)
                .advise(advice.to_owned())),
        }
    }
}

/// Returns the bytes that a data set may hold against all others. A pinned one may grow to its
/// maximum, which must fit beside the minimums of the others.
fn promise(set: &Dataset) -> u64 {
    match (set.pin, set.max_bytes) {
        (true, Some(max)) => max,
        _ => set.min_bytes,
    }
}

/// Returns the first name that no tier has.
fn unknown<'a>(named: &'a [String], tiers: &[(&str, u64)]) -> Option<&'a String> {
    named.iter().find(|name| !tiers.iter().any(|(tier, _)| tier == name))
}

/// Rejects data sets whose rules `tiers` cannot all keep.
fn datasets(datasets: &[Dataset], tiers: &[(&str, u64)]) -> Result<()> {
    for set in datasets {
        set.check()?;
        if let Some(unknown) = unknown(&set.tiers, tiers) {
            return Err(Error::new(ErrorKind::Invalid, "the tier does not exist")
                .at("dataset", &set.name)
                .at("tier", unknown));
        }
    }
    for choice in Choice::all(tiers, datasets.iter().map(|set| &set.tiers)) {
        let bound = || datasets.iter().filter(|set| choice.binds(&set.tiers));
        choice.fits(
            total(bound().map(|set| set.min_bytes)),
            "the data sets' minima exceed the capacity",
            "lower quota.min, or raise the tiers' capacity",
        )?;
        choice.fits(
            total(bound().map(promise)),
            "the pinned data sets exceed the capacity",
            "lower the pinned data sets' quota.max, or raise the tiers' capacity",
        )?;
    }
    Ok(())
}

/// Rejects checkpoint rules whose reserves `tiers` cannot all keep, beside the data sets' promises.
fn checkpoints(
    rules: &[CheckpointRule],
    datasets: &[Dataset],
    tiers: &[(&str, u64)],
) -> Result<()> {
    for rule in rules {
        rule.check()?;
        if let Some(unknown) = unknown(&rule.tiers, tiers) {
            let error = Error::new(ErrorKind::Invalid, "the tier does not exist");
            return Err(rule.locate(error).at("tier", unknown));
        }
    }
    let named = || rules.iter().map(|rule| &rule.tiers);
    for choice in Choice::all(tiers, named().chain(datasets.iter().map(|set| &set.tiers))) {
        let bound = rules.iter().filter(|rule| choice.binds(&rule.tiers));
        let reserves = total(bound.map(|rule| rule.reserve_bytes));
        choice.fits(
            reserves,
            "the checkpoints' reserves exceed the capacity",
            "lower `reserve`, or raise the tiers' capacity",
        )?;
        let sets = datasets.iter().filter(|set| choice.binds(&set.tiers)).map(promise);
        choice.fits(
            total(std::iter::once(reserves).chain(sets)),
            "the checkpoints' reserves and the data sets' promises exceed the capacity",
            "lower `reserve`, quota.min or a pinned quota.max, or raise the tiers' capacity",
        )?;
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
