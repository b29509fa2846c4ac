//! Settings to reach a store: endpoint and credentials from a client's environment.
//!
//! Only the variables named here travel, each store sees its own, and a secret is never printed.

use std::collections::BTreeMap;
use std::fmt;

use aws_config::meta::region::ProvideRegion as _;
use aws_config::profile::ProfileFileRegionProvider;
use futures::FutureExt as _;
use serde::{Deserialize, Serialize};

/// The variables that are understood, and whether [`fmt::Debug`] shows their values.
const UNDERSTOOD: [(&str, Value); 49] = [
    ("AWS_ACCESS_KEY_ID", Value::Hidden),
    ("AWS_ALLOW_HTTP", Value::Shown),
    ("AWS_CONFIG_FILE", Value::Shown),
    ("AWS_CONTAINER_AUTHORIZATION_TOKEN", Value::Hidden),
    ("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE", Value::Shown),
    ("AWS_CONTAINER_CREDENTIALS_FULL_URI", Value::Hidden),
    ("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI", Value::Hidden),
    ("AWS_DEFAULT_REGION", Value::Shown),
    ("AWS_EC2_METADATA_DISABLED", Value::Shown),
    ("AWS_EC2_METADATA_SERVICE_ENDPOINT", Value::Hidden),
    ("AWS_ENDPOINT_URL", Value::Shown),
    ("AWS_ENDPOINT_URL_S3", Value::Shown),
    ("AWS_ENDPOINT_URL_STS", Value::Shown),
    ("AWS_PROFILE", Value::Shown),
    ("AWS_REGION", Value::Shown),
    ("AWS_REQUEST_CHECKSUM_CALCULATION", Value::Shown),
    ("AWS_REQUEST_PAYER", Value::Shown),
    ("AWS_ROLE_ARN", Value::Shown),
    ("AWS_ROLE_SESSION_NAME", Value::Shown),
    ("AWS_SECRET_ACCESS_KEY", Value::Hidden),
    ("AWS_SESSION_TOKEN", Value::Hidden),
    ("AWS_SHARED_CREDENTIALS_FILE", Value::Shown),
    ("AWS_SKIP_SIGNATURE", Value::Shown),
    ("AWS_VIRTUAL_HOSTED_STYLE_REQUEST", Value::Shown),
    ("AWS_WEB_IDENTITY_TOKEN_FILE", Value::Shown),
    ("AZURE_AUTHORITY_HOST", Value::Shown),
    ("AZURE_CLIENT_ID", Value::Shown),
    ("AZURE_CLIENT_SECRET", Value::Hidden),
    ("AZURE_FEDERATED_TOKEN_FILE", Value::Shown),
    ("AZURE_SKIP_SIGNATURE", Value::Shown),
    ("AZURE_STORAGE_ACCOUNT_KEY", Value::Hidden),
    ("AZURE_STORAGE_ACCOUNT_NAME", Value::Shown),
    ("AZURE_STORAGE_ENDPOINT", Value::Shown),
    ("AZURE_STORAGE_SAS_TOKEN", Value::Hidden),
    ("AZURE_STORAGE_TOKEN", Value::Hidden),
    ("AZURE_STORAGE_USE_EMULATOR", Value::Shown),
    ("AZURE_TENANT_ID", Value::Shown),
    ("GOOGLE_APPLICATION_CREDENTIALS", Value::Shown),
    ("GOOGLE_BASE_URL", Value::Shown),
    ("GOOGLE_BEARER_TOKEN", Value::Hidden),
    ("GOOGLE_SERVICE_ACCOUNT", Value::Shown),
    ("GOOGLE_SERVICE_ACCOUNT_KEY", Value::Hidden),
    ("GOOGLE_SERVICE_ACCOUNT_PATH", Value::Shown),
    ("GOOGLE_SKIP_SIGNATURE", Value::Shown),
    ("HF_ENDPOINT", Value::Shown),
    ("HF_TOKEN", Value::Hidden),
    ("STORAGE_EMULATOR_HOST", Value::Shown),
    ("AZURE_STORAGE_ACCOUNT", Value::Shown),
    ("AZURE_STORAGE_KEY", Value::Hidden),
];

/// Older or other tools' names of a variable, and ours.
const ALSO_CALLED: [(&str, &str); 4] = [
    ("AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME"),
    ("AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY"),
    ("GOOGLE_SERVICE_ACCOUNT_PATH", "GOOGLE_SERVICE_ACCOUNT"),
    ("STORAGE_EMULATOR_HOST", "GOOGLE_BASE_URL"),
];

/// Visibility of a variable's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    Shown,
    Hidden,
}

/// Family of stores, by the variables it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Family {
    /// Amazon's, and all that speak S3.
    Aws,
    /// Google's.
    Google,
    /// Microsoft's.
    Azure,
    /// Hugging Face's.
    HuggingFace,
}

impl Family {
    fn has(self, name: &str) -> bool {
        let prefix = match self {
            Self::Aws => "AWS_",
            Self::Google => "GOOGLE_",
            Self::Azure => "AZURE_",
            Self::HuggingFace => "HF_",
        };
        name.starts_with(prefix)
    }
}

/// Endpoint, region and credentials for remote stores, by the names of their variables.
#[derive(Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Options(BTreeMap<String, String>);

impl Options {
    /// Returns the variables whose values are no secrets.
    #[must_use]
    pub fn without_secrets(&self) -> BTreeMap<String, String> {
        let is_shown = |name: &str| {
            let mut shown = UNDERSTOOD.iter().filter(|(_, value)| *value == Value::Shown);
            shown.any(|(known, _)| *known == name)
        };
        let shown = self.0.iter().filter(|(name, _)| is_shown(name));
        shown.map(|(name, value)| (name.clone(), value.clone())).collect()
    }

    /// The understood variables of this process's environment.
    ///
    /// Where it names no region, the region of the AWS profile in use is taken: its files are this
    /// user's, and a daemon may not be.
    #[must_use]
    pub fn from_env() -> Self {
        let set = |(name, _): &(&str, Value)| Some(((*name).to_owned(), std::env::var(name).ok()?));
        let options = Self(UNDERSTOOD.iter().filter_map(set).collect());
        if options.get("AWS_REGION").or(options.get("AWS_DEFAULT_REGION")).is_some() {
            return options;
        }
        // Two small files are read in place: nothing is waited for.
        let profile = ProfileFileRegionProvider::new();
        match profile.region().now_or_never().flatten() {
            Some(region) => options.with("AWS_REGION", region.as_ref()),
            None => options,
        }
    }

    /// The options as they travel from client to daemon.
    #[must_use]
    pub fn into_map(self) -> BTreeMap<String, String> {
        self.0
    }

    /// These options with one more, or one changed. Names that are not understood are dropped when
    /// the options are used.
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> Self {
        self.0.insert(name.to_owned(), value.to_owned());
        self
    }

    /// These options without one of them.
    pub(crate) fn without(mut self, name: &str) -> Self {
        self.0.remove(name);
        self
    }

    /// Only what a store of this family understands, under one name each and not empty: what else a
    /// client sends is neither used nor remembered.
    pub(crate) fn of(&self, family: Family) -> Self {
        let mut kept = BTreeMap::new();
        for (name, value) in self.0.iter().filter(|(_, value)| !value.is_empty()) {
            let ours = ALSO_CALLED.iter().find(|(other, _)| other == name);
            let named = ours.map_or(name.as_str(), |(_, ours)| ours);
            let known = UNDERSTOOD.iter().any(|(known, _)| known == name);
            let chosen = ours.is_none() || self.get(named).is_none();
            if known && chosen && family.has(named) {
                kept.insert(named.to_owned(), value.clone());
            }
        }
        Self(kept)
    }

    /// The value of an understood variable that is set and not empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        debug_assert!(UNDERSTOOD.iter().any(|(known, _)| *known == name), "{name} is invalid");
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Returns true if a variable is set to a word for yes.
    pub(crate) fn is_on(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| matches!(value, "1" | "true" | "True" | "TRUE" | "yes"))
    }

    /// Every variable and its value.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &str)> {
        self.0.iter().map(|(name, value)| (name.as_str(), value.as_str()))
    }

    /// Names of variables and whether they are set, for advice about credentials.
    pub(crate) fn which_are_set(&self, names: &[&str]) -> String {
        let state = |name: &&str| {
            format!("{name} is {}", if self.get(name).is_some() { "set" } else { "not set" })
        };
        names.iter().map(state).collect::<Vec<_>>().join(", ")
    }
}

impl From<BTreeMap<String, String>> for Options {
    fn from(map: BTreeMap<String, String>) -> Self {
        Self(map)
    }
}

impl fmt::Debug for Options {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown = |(name, value): (&String, &String)| {
            let shown = UNDERSTOOD.contains(&(name.as_str(), Value::Shown));
            let harmless = shown && !value.contains(['@', '?']);
            (name.clone(), if harmless { value.clone() } else { "(hidden)".to_owned() })
        };
        f.debug_map().entries(self.0.iter().map(shown)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_not_shown() {
        let mut options = Options::default()
            .with("AWS_REGION", "eu-west-1")
            .with("AWS_ENDPOINT_URL", "http://user:hunter2@host")
            .with("AZURE_STORAGE_ENDPOINT", "https://host/?sig=hunter2")
            .with("SOMETHING_ELSE", "hunter2");
        for (name, value) in UNDERSTOOD {
            if value == Value::Hidden {
                options = options.with(name, "hunter2");
            }
        }
        let text = format!("{options:?}");
        assert!(text.contains("eu-west-1") && !text.contains("hunter2"), "{text}");
    }

    #[test]
    fn secret_sounding_variables_are_hidden() {
        let secret = |name: &str| {
            let ends = ["_KEY", "_SECRET", "_TOKEN", "_URI", "KEY_ID"];
            ends.iter().any(|end| name.ends_with(end))
        };
        for (name, value) in UNDERSTOOD {
            assert!(value == Value::Hidden || !secret(name), "{name} may be shown");
        }
    }

    #[test]
    fn each_store_gets_its_variables_under_canonical_names() {
        let options = Options::default()
            .with("AWS_REGION", "r")
            .with("AWS_PROFILE", "")
            .with("AZURE_STORAGE_ACCOUNT", "old")
            .with("AZURE_STORAGE_ACCOUNT_NAME", "new")
            .with("AZURE_STORAGE_KEY", "k")
            .with("STORAGE_EMULATOR_HOST", "h")
            .with("AWS_SOMETHING", "x");
        let map = |family| options.of(family).into_map();
        let pairs = |pairs: &[(&str, &str)]| {
            let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            pairs.iter().map(owned).collect::<BTreeMap<_, _>>()
        };
        assert_eq!(map(Family::Aws), pairs(&[("AWS_REGION", "r")]));
        let azure = [("AZURE_STORAGE_ACCOUNT_KEY", "k"), ("AZURE_STORAGE_ACCOUNT_NAME", "new")];
        assert_eq!(map(Family::Azure), pairs(&azure));
        assert_eq!(map(Family::Google), pairs(&[("GOOGLE_BASE_URL", "h")]));
    }
}
