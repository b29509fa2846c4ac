//! The languages in which a configuration file may be written.
//!
//! One rule: the file's name decides which; all come to the same tree, and what one of them cannot say
//! (a key twice, a date) is refused in each.

mod json;
mod toml;
mod yaml;

use std::path::Path;

use super::mistake::Mistake;
use super::tree::{Node, Place, Value};

/// Tables within tables: ours are three deep, and what reads them recurses.
const MAX_DEPTH: usize = 32;

/// A language.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Language {
    /// `.json`
    Json,
    /// Anything else.
    Toml,
    /// `.yaml`, `.yml`
    Yaml,
}

impl Language {
    /// What a file of this name is written in.
    pub(crate) fn of(file: &Path) -> Self {
        let ending = file.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        match ending.to_ascii_lowercase().as_str() {
            "json" => Self::Json,
            "yaml" | "yml" => Self::Yaml,
            _ => Self::Toml,
        }
    }

    /// What a file says; as much of it as can be read where the language allows to go on.
    pub(super) fn tree(self, text: &str) -> Result<Node, Vec<Mistake>> {
        match self {
            Self::Json => json::tree(text),
            Self::Toml => toml::tree(text),
            Self::Yaml => yaml::tree(text),
        }
    }
}

/// Where a file says what it says.
#[derive(Debug)]
pub struct Places(Option<Node>);

impl Places {
    /// Of a file of this name with this text; of one that cannot be read, none.
    pub fn of(file: &Path, text: &str) -> Self {
        Self(Language::of(file).tree(text).ok())
    }

    /// Of a key in the `at`-th table of this name; of the table, where the key is not written.
    pub fn of_key(&self, section: &str, at: usize, key: &str) -> Option<Place> {
        let section = self.0.as_ref()?.get(section)?;
        let table = match &section.value {
            Value::List(tables) => tables.get(at)?,
            _ => Some(section).filter(|_| at == 0)?,
        };
        Some(table.key(key).map_or(table.place, |key| key.place))
    }
}

/// A file's bytes as text.
pub(super) fn text(bytes: Vec<u8>) -> Result<String, Mistake> {
    String::from_utf8(bytes).map_err(|error| {
        let good = error.utf8_error().valid_up_to();
        let before = String::from_utf8_lossy(&error.as_bytes()[..good]);
        let place = Lines::of(&before).place(before.len());
        Mistake::of_syntax(Some(place), "the file is no text: this byte is not UTF-8")
    })
}

/// Where the lines of a text begin.
struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn of(text: &'a str) -> Self {
        let newlines = text.match_indices('\n').map(|(at, _)| at + 1);
        Self { text, starts: std::iter::once(0).chain(newlines).collect() }
    }

    /// Where byte `offset` is.
    fn place(&self, offset: usize) -> Place {
        let offset = self.text.floor_char_boundary(offset);
        let line = self.starts.partition_point(|start| *start <= offset);
        let start = self.starts[line - 1];
        Place { line, column: self.text[start..offset].chars().count() + 1 }
    }
}
