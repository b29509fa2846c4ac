//! Properties that two runs must share for a ratio to mean anything.

use serde_json::Value;

use super::pick;

/// Those properties beside the configuration: name and place.
const KIND: [(&str, &str); 7] = [
    ("workload", "/profile"),
    ("batch size", "/batch_size"),
    ("step", "/step_seconds"),
    ("processor", "/machine/cpu"),
    ("cores", "/machine/cores"),
    ("memory", "/machine/memory_bytes"),
    ("kernel", "/machine/kernel"),
];

/// Returns the differences of two runs that weaken ratios.
pub(super) fn differ(before: &Value, after: &Value) -> Vec<(String, Value, Value)> {
    let kinds = KIND.iter().map(|(name, path)| ((*name).to_owned(), (*path).to_owned()));
    let settings = [before, after].into_iter().filter_map(|run| run["configuration"].as_object());
    let mut settings: Vec<_> = settings.flat_map(|fields| fields.keys()).collect();
    settings.sort();
    settings.dedup();
    let settings =
        settings.into_iter().map(|name| (name.clone(), format!("/configuration/{name}")));
    let differ = kinds.chain(settings).filter_map(|(name, path)| {
        let (one, other) = (pick(before, &path), pick(after, &path));
        if one == other {
            return None;
        }
        Some(match (one.as_array(), other.as_array()) {
            (Some(ones), Some(others)) if ones.len() != others.len() => {
                (format!("number of {name}"), ones.len().into(), others.len().into())
            }
            (Some(ones), Some(others)) => {
                let mut pairs = ones.iter().zip(others);
                let (one, other) = pairs.find(|(one, other)| one != other)?;
                (format!("the first of {name} that differ,"), one.clone(), other.clone())
            }
            _ => (name, one, other),
        })
    });
    differ.collect()
}
