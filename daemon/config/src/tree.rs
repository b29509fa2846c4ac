//! Content of a configuration file as a tree, in any language, with places.
//!
//! Every value and every key has its line and column; the tree knows nothing of meaning.

use std::fmt;

/// Place in a file, both counted from 1; columns in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct FilePosition {
    /// The line.
    pub line: usize,
    /// The column.
    pub column: usize,
}

impl FilePosition {
    /// Start of a file.
    pub(super) const START: Self = Self { line: 1, column: 1 };
}

impl fmt::Display for FilePosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

/// A key of a table.
#[derive(Debug)]
pub(super) struct Key {
    pub(super) text: String,
    pub(super) place: FilePosition,
}

/// A value.
#[derive(Debug)]
pub(super) struct Node {
    pub(super) place: FilePosition,
    pub(super) value: Value,
}

/// Kind of a value.
#[derive(Debug)]
pub(super) enum Value {
    /// Nothing, where a language has a word for it.
    Null,
    Bool(bool),
    Integer(i64),
    Float(f64),
    Text(String),
    List(Vec<Node>),
    /// In the order of the file; no key twice.
    Table(Vec<(Key, Node)>),
}

impl Node {
    /// An entry of a table, if it is one and has it.
    pub(super) fn get(&self, key: &str) -> Option<&Self> {
        let Value::Table(entries) = &self.value else { return None };
        entries.iter().find(|(have, _)| have.text == key).map(|(_, node)| node)
    }

    /// A key of a table, if it is one and has it.
    pub(super) fn key(&self, key: &str) -> Option<&Key> {
        let Value::Table(entries) = &self.value else { return None };
        entries.iter().map(|(have, _)| have).find(|have| have.text == key)
    }

    /// The elements of a list, if it is one.
    pub(super) fn elements(&self) -> &[Self] {
        match &self.value {
            Value::List(elements) => elements,
            _ => &[],
        }
    }

    /// The text, if it is one.
    pub(super) fn text(&self) -> Option<&str> {
        match &self.value {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}
