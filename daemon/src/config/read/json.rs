//! JSON.
//!
//! One rule: JSON's own parser says whether it is JSON; where its values stand, YAML's says, of which JSON
//! is a part.

use serde::de::IgnoredAny;

use super::yaml;
use crate::config::mistake::Mistake;
use crate::config::tree::{Node, Place};

/// The tree of a file.
pub(super) fn tree(text: &str) -> Result<Node, Vec<Mistake>> {
    serde_json::from_str::<IgnoredAny>(text).map_err(|error| {
        let place = Place { line: error.line().max(1), column: error.column().max(1) };
        let what = error.to_string();
        // It says where by itself, at the end.
        let what = what.rsplit_once(" at line ").map_or(what.as_str(), |(what, _)| what);
        vec![Mistake::of_syntax(Some(place), format!("this is no JSON: {what}"))]
    })?;
    yaml::tree(text)
}
