//! TOML.
//!
//! The parser goes on behind what it does not understand, so that all of it is told at
//! once.

use std::collections::HashSet;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Lines, MAX_DEPTH};
use crate::mistake::Mistake;
use crate::tree::{FilePosition, Key, Node, Value};

/// The tree of a file.
pub(super) fn tree(text: &str) -> Result<Node, Vec<Mistake>> {
    let (table, errors) = DeTable::parse_recoverable(text);
    let lines = Lines::of(text);
    let at = |error: &toml::de::Error| error.span().map(|span| lines.place(span.start));
    let mut mistakes: Vec<_> = errors
        .iter()
        .map(|error| Mistake::of_syntax(at(error), error.message().trim().replace('\n', ", ")))
        .collect();
    // The parser may report one slip several times: the first on a line is the one to fix.
    let mut told = HashSet::new();
    mistakes.sort_by_key(|mistake| mistake.place);
    mistakes.retain(|mistake| mistake.place.is_none_or(|place| told.insert(place.line)));
    if !mistakes.is_empty() {
        return Err(mistakes);
    }
    let mut reader = Reader { lines, mistakes };
    let node = reader.table(FilePosition::START, table.get_ref(), MAX_DEPTH);
    if reader.mistakes.is_empty() { Ok(node) } else { Err(reader.mistakes) }
}

struct Reader<'a> {
    lines: Lines<'a>,
    mistakes: Vec<Mistake>,
}

impl Reader<'_> {
    fn table(&mut self, place: FilePosition, table: &DeTable<'_>, depth: usize) -> Node {
        // The parser sorts by name.
        let mut entries: Vec<_> = table.iter().collect();
        entries.sort_by_key(|(key, _)| key.span().start);
        let entries = entries.into_iter().map(|(key, value)| {
            let name = Key { text: key.get_ref().to_string(), place: self.place(key) };
            (name, self.node(value, depth))
        });
        Node { place, value: Value::Table(entries.collect()) }
    }

    fn place<T>(&self, spanned: &Spanned<T>) -> FilePosition {
        self.lines.place(spanned.span().start)
    }

    fn node(&mut self, spanned: &Spanned<DeValue<'_>>, depth: usize) -> Node {
        let place = self.place(spanned);
        let Some(depth) = depth.checked_sub(1) else {
            return self.refuse(place, "tables are nested too deeply");
        };
        let value = match spanned.get_ref() {
            DeValue::String(text) => Value::Text(text.to_string()),
            DeValue::Boolean(word) => Value::Bool(*word),
            DeValue::Integer(number) => {
                match i64::from_str_radix(number.as_str(), number.radix()) {
                    Ok(number) => Value::Integer(number),
                    Err(_) => return self.refuse(place, "the number is too large"),
                }
            }
            DeValue::Float(number) => match number.as_str().parse() {
                Ok(number) => Value::Float(number),
                Err(_) => return self.refuse(place, "the number is too large"),
            },
            DeValue::Datetime(_) => {
                return self.refuse(place, "a date is not allowed here: put text in quotes");
            }
            DeValue::Array(list) => {
                Value::List(list.iter().map(|element| self.node(element, depth)).collect())
            }
            DeValue::Table(table) => return self.table(place, table, depth),
        };
        Node { place, value }
    }

    fn refuse(&mut self, place: FilePosition, what: &str) -> Node {
        self.mistakes.push(Mistake::of_syntax(Some(place), what));
        Node { place, value: Value::Null }
    }
}
