//! The languages in which a configuration file may be written.
//!
//! The file's name decides which; all come to the same tree, and what one of them cannot
//! say (a key twice, a date) is refused in each.

mod json;
mod toml;
mod yaml;

use std::path::Path;

use super::mistake::Mistake;
use super::tree::{FilePosition, Node, Value};

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
    /// Returns the language of a file, by its name.
    pub(crate) fn of(file: &Path) -> Self {
        let ending = file.extension().and_then(|ending| ending.to_str()).unwrap_or_default();
        match ending.to_ascii_lowercase().as_str() {
            "json" => Self::Json,
            "yaml" | "yml" => Self::Yaml,
            _ => Self::Toml,
        }
    }

    /// Parses a file; if the language allows it, parsing continues past mistakes.
    pub(super) fn tree(self, text: &str) -> Result<Node, Vec<Mistake>> {
        match self {
            Self::Json => json::tree(text),
            Self::Toml => toml::tree(text),
            Self::Yaml => yaml::tree(text),
        }
    }
}

/// Places of a file's values.
#[derive(Debug)]
pub struct Places(Option<Node>);

impl Places {
    /// Returns the places of a file with this name and text; none if it cannot be parsed.
    pub fn of(file: &Path, text: &str) -> Self {
        Self(Language::of(file).tree(text).ok())
    }

    /// Returns the place of a key in the `at`-th table of this name; the table's, if the key is
    /// absent.
    pub fn of_key(&self, section: &str, at: usize, key: &str) -> Option<FilePosition> {
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
        Mistake::of_syntax(Some(place), "the file is not text: this byte is not UTF-8")
    })
}

/// Offsets of a text's lines.
struct Lines<'a> {
    text: &'a str,
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    fn of(text: &'a str) -> Self {
        let newlines = text.match_indices('\n').map(|(at, _)| at + 1);
        Self { text, starts: std::iter::once(0).chain(newlines).collect() }
    }

    /// Returns the place of byte `offset`.
    fn place(&self, offset: usize) -> FilePosition {
        let offset = self.text.floor_char_boundary(offset);
        let line = self.starts.partition_point(|start| *start <= offset);
        let start = self.starts[line - 1];
        FilePosition { line, column: self.text[start..offset].chars().count() + 1 }
    }
}
