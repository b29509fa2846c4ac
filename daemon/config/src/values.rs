//! A tree, read into the configuration's own types.
//!
//! A failure names the value it failed at; that value can be left out to find further failures.

use std::collections::HashSet;
use std::fmt;

use forebay_error::{Error, ErrorKind};
use serde::de::value::StrDeserializer;
use serde::de::{self, DeserializeSeed, Deserializer, IntoDeserializer, Visitor};
use serde::forward_to_deserialize_any;

use super::suggest;
use super::tree::{Key, Node, Value};

/// Values that are left out.
pub(super) type Skipped = HashSet<*const Node>;

/// A reason a tree is not a configuration.
#[derive(Debug)]
pub(super) struct Fault<'t> {
    pub(super) what: What,
    /// The value it is about and what that lies in, the innermost first; the root is not named.
    pub(super) trail: Vec<Step<'t>>,
}

/// One step into a tree.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step<'t> {
    /// The fault is in an entry of a table.
    pub(super) key: Option<&'t Key>,
    pub(super) node: &'t Node,
}

/// The fault.
#[derive(Debug)]
pub(super) enum What {
    /// A table has no such key.
    UnknownKey(String, &'static [&'static str]),
    /// None of the words that would do.
    UnknownWord(String, &'static [&'static str]),
    /// A table lacks a key.
    Missing(&'static str),
    /// Anything else.
    Other(String),
}

impl Fault<'_> {
    /// Returns the fault as an error.
    pub(super) fn error(&self) -> Error {
        let key = self.trail.iter().find_map(|step| step.key).map(|key| key.text.as_str());
        let invalid = |what: String| Error::new(ErrorKind::Invalid, what);
        let advised = |error: Error, advice: Option<String>| match advice {
            Some(advice) => error.advise(advice),
            None => error,
        };
        match (&self.what, key) {
            (What::UnknownKey(wrong, known), _) => {
                advised(invalid(format!("unknown key `{wrong}`")), suggest::advice(wrong, known))
            }
            (What::UnknownWord(wrong, known), key) => {
                let key = key.unwrap_or("this");
                let error = invalid(format!("`{key}` cannot be `{wrong}`"));
                advised(error, suggest::advice(wrong, known))
            }
            (What::Missing(key), _) => invalid(format!("missing key `{key}`")),
            (What::Other(what), Some(key)) => invalid(format!("`{key}`: {what}")),
            (What::Other(what), None) => invalid(what.clone()),
        }
    }
}

impl fmt::Display for Fault<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error().fmt(f)
    }
}

impl std::error::Error for Fault<'_> {}

impl de::Error for Fault<'_> {
    fn custom<T: fmt::Display>(what: T) -> Self {
        What::Other(what.to_string()).into()
    }

    fn invalid_type(found: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        unexpected(found, expected)
    }

    fn invalid_value(found: de::Unexpected<'_>, expected: &dyn de::Expected) -> Self {
        unexpected(found, expected)
    }

    fn unknown_variant(wrong: &str, known: &'static [&'static str]) -> Self {
        What::UnknownWord(wrong.to_owned(), known).into()
    }

    fn unknown_field(wrong: &str, known: &'static [&'static str]) -> Self {
        What::UnknownKey(wrong.to_owned(), known).into()
    }

    fn missing_field(key: &'static str) -> Self {
        What::Missing(key).into()
    }
}

impl From<What> for Fault<'_> {
    fn from(what: What) -> Self {
        Self { what, trail: Vec::new() }
    }
}

/// Serde knows numbers by the names that they have in Rust.
fn unexpected<'t>(found: de::Unexpected<'_>, expected: &dyn de::Expected) -> Fault<'t> {
    let expected = match expected.to_string().as_str() {
        "u8" | "u16" | "u32" | "u64" | "usize" => "a whole number of 0 or more".to_owned(),
        "i8" | "i16" | "i32" | "i64" | "isize" => "a whole number".to_owned(),
        "f32" | "f64" => "a number".to_owned(),
        other => other.to_owned(),
    };
    match found {
        de::Unexpected::Unit => {
            de::Error::custom(format_args!("expected {expected}, found nothing"))
        }
        found => de::Error::custom(format_args!("expected {expected}, found {found}")),
    }
}

/// Reads one value.
#[derive(Clone, Copy)]
pub(super) struct Reader<'s, 't> {
    pub(super) node: &'t Node,
    pub(super) skipped: &'s Skipped,
}

impl<'s, 't> Reader<'s, 't> {
    /// The same of another value.
    fn of(self, node: &'t Node) -> Self {
        Self { node, ..self }
    }

    /// Returns true if a value is to be read.
    fn counts(self, node: &Node) -> bool {
        !self.skipped.contains(&std::ptr::from_ref(node))
    }
}

impl<'t> Deserializer<'t> for Reader<'_, 't> {
    type Error = Fault<'t>;

    fn deserialize_any<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, Fault<'t>> {
        match &self.node.value {
            Value::Null => visitor.visit_unit(),
            Value::Bool(word) => visitor.visit_bool(*word),
            Value::Integer(number) => visitor.visit_i64(*number),
            Value::Float(number) => visitor.visit_f64(*number),
            Value::Text(text) => visitor.visit_borrowed_str(text),
            Value::List(elements) => {
                visitor.visit_seq(Elements { of: self, rest: elements.iter() })
            }
            Value::Table(entries) => {
                visitor.visit_map(Entries { of: self, rest: entries.iter(), value: None })
            }
        }
    }

    fn deserialize_option<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, Fault<'t>> {
        match self.node.value {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'t>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Fault<'t>> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'t>>(
        self,
        _name: &'static str,
        _words: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault<'t>> {
        match &self.node.value {
            Value::Text(word) => {
                let word: StrDeserializer<'_, Fault<'t>> = word.as_str().into_deserializer();
                visitor.visit_enum(word)
            }
            _ => Err(de::Error::custom("expected a word")),
        }
    }

    fn deserialize_seq<V: Visitor<'t>>(self, visitor: V) -> Result<V::Value, Fault<'t>> {
        match self.node.value {
            Value::Table(_) => Err(de::Error::custom(
                "expected a list, found one table: in TOML, `[[name]]` adds a table to a list",
            )),
            _ => self.deserialize_any(visitor),
        }
    }

    /// Without this serde would read a list as the fields in their order.
    fn deserialize_struct<V: Visitor<'t>>(
        self,
        _name: &'static str,
        _keys: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Fault<'t>> {
        match self.node.value {
            Value::Table(_) => self.deserialize_any(visitor),
            Value::List(_) => Err(de::Error::custom("expected a table, found a list")),
            _ => Err(de::Error::custom("expected a table")),
        }
    }

    forward_to_deserialize_any! {
        <V: Visitor<'t>>
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct tuple tuple_struct map identifier ignored_any
    }
}

struct Elements<'s, 't> {
    of: Reader<'s, 't>,
    rest: std::slice::Iter<'t, Node>,
}

impl<'t> de::SeqAccess<'t> for Elements<'_, 't> {
    type Error = Fault<'t>;

    fn next_element_seed<T: DeserializeSeed<'t>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Fault<'t>> {
        let Some(node) = self.rest.by_ref().find(|node| self.of.counts(node)) else {
            return Ok(None);
        };
        seed.deserialize(self.of.of(node)).map(Some).map_err(|fault| fault.within(None, node))
    }
}

struct Entries<'s, 't> {
    of: Reader<'s, 't>,
    rest: std::slice::Iter<'t, (Key, Node)>,
    /// Value of the key read last.
    value: Option<&'t (Key, Node)>,
}

impl<'t> de::MapAccess<'t> for Entries<'_, 't> {
    type Error = Fault<'t>;

    fn next_key_seed<K: DeserializeSeed<'t>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Fault<'t>> {
        self.value = self.rest.by_ref().find(|(_, node)| self.of.counts(node));
        let Some((key, node)) = self.value else { return Ok(None) };
        let name: StrDeserializer<'_, Fault<'t>> = key.text.as_str().into_deserializer();
        seed.deserialize(name).map(Some).map_err(|fault| fault.within(Some(key), node))
    }

    fn next_value_seed<V: DeserializeSeed<'t>>(&mut self, seed: V) -> Result<V::Value, Fault<'t>> {
        let Some((key, node)) = self.value else {
            return Err(de::Error::custom("a value without a key"));
        };
        seed.deserialize(self.of.of(node)).map_err(|fault| fault.within(Some(key), node))
    }
}

impl<'t> Fault<'t> {
    fn within(mut self, key: Option<&'t Key>, node: &'t Node) -> Self {
        self.trail.push(Step { key, node });
        self
    }
}
