//! How to reach a store: what a client's environment says about endpoint and credentials.
//!
//! Its rule: only the variables named here travel, and a secret is never printed.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

/// The variables that are understood.
const ALLOWED: [&str; 15] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_ALLOW_HTTP",
    "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_REGION",
    "AWS_ROLE_ARN",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_SKIP_SIGNATURE",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
];

/// Those that [`fmt::Debug`] shows as they are.
const HARMLESS: [&str; 7] = [
    "AWS_ALLOW_HTTP",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
    "AWS_ENDPOINT_URL_S3",
    "AWS_REGION",
    "AWS_SKIP_SIGNATURE",
    "AWS_VIRTUAL_HOSTED_STYLE_REQUEST",
];

/// Endpoint, region and credentials for remote stores, by the names of their variables.
#[derive(Clone, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Options(BTreeMap<String, String>);

impl Options {
    /// The understood variables of this process's environment.
    #[must_use]
    pub fn from_env() -> Self {
        let set = |name: &&str| Some(((*name).to_owned(), std::env::var(name).ok()?));
        Self(ALLOWED.iter().filter_map(set).collect())
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

    /// Only what is understood: what else a client sends is neither used nor remembered.
    pub(crate) fn understood(&self) -> Self {
        let kept = self.0.iter().filter(|(name, _)| ALLOWED.contains(&name.as_str()));
        Self(kept.map(|(name, value)| (name.clone(), value.clone())).collect())
    }

    /// The value of an understood variable that is set and not empty.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        debug_assert!(ALLOWED.contains(&name), "{name} is not among the understood variables");
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }

    /// Whether a variable is set to a word for yes.
    pub(crate) fn is_on(&self, name: &str) -> bool {
        self.get(name).is_some_and(|value| matches!(value, "1" | "true" | "True" | "TRUE" | "yes"))
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
            let harmless = HARMLESS.contains(&name.as_str()) && !value.contains('@');
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
        let options = Options::default()
            .with("AWS_REGION", "eu-west-1")
            .with("AWS_SECRET_ACCESS_KEY", "hunter2")
            .with("AWS_ENDPOINT_URL", "http://user:hunter2@host")
            .with("SOMETHING_ELSE", "hunter2");
        let text = format!("{options:?}");
        assert!(text.contains("eu-west-1") && !text.contains("hunter2"), "{text}");
    }

    #[test]
    fn harmless_variables_are_understood_ones() {
        assert!(HARMLESS.iter().all(|name| ALLOWED.contains(name)));
        assert!(ALLOWED.is_sorted());
    }
}
