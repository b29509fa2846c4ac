//! YAML 1.2 with its core schema: `no` is a text, `0x10` a number.
//!
//! Content that is invisible where it stands (anchors, tags, a second document) is rejected.

use std::collections::HashSet;

use forebay_error::{Error, ErrorKind};
use saphyr_parser::{Event, Marker, Parser, ScalarStyle, Span, StrInput};

use super::MAX_DEPTH;
use crate::mistake::Mistake;
use crate::tree::{FilePosition, Key, Node, Value};

/// The tree of a file.
pub(super) fn tree(text: &str) -> Result<Node, Vec<Mistake>> {
    let mut reader = Reader { parser: Parser::new_from_str(text), mistakes: Vec::new() };
    match reader.document() {
        Ok(node) if reader.mistakes.is_empty() => Ok(node),
        Ok(_) => Err(reader.mistakes),
        Err(mistake) => {
            reader.mistakes.push(mistake);
            Err(reader.mistakes)
        }
    }
}

struct Reader<'a> {
    parser: Parser<'a, StrInput<'a>>,
    /// Mistakes that do not stop the parser.
    mistakes: Vec<Mistake>,
}

fn place(marker: &Marker) -> FilePosition {
    FilePosition { line: marker.line().max(1), column: marker.col() + 1 }
}

fn wrong(span: Span, what: &str) -> Mistake {
    Mistake::of_syntax(Some(place(&span.start)), what)
}

impl<'a> Reader<'a> {
    fn next(&mut self) -> Result<(Event<'a>, Span), Mistake> {
        match self.parser.next_event() {
            Some(Ok(event)) => Ok(event),
            Some(Err(error)) => {
                let what = format!("invalid YAML: {}", error.info());
                Err(Mistake::of_syntax(Some(place(error.marker())), what))
            }
            None => Ok((Event::StreamEnd, Span::default())),
        }
    }

    fn document(&mut self) -> Result<Node, Mistake> {
        let mut root = None;
        loop {
            let (event, span) = self.next()?;
            match event {
                Event::StreamEnd => break,
                Event::StreamStart | Event::DocumentEnd | Event::Nothing => {}
                Event::DocumentStart(_) if root.is_some() => {
                    return Err(wrong(span, "a second document in one file"));
                }
                Event::DocumentStart(_) => {}
                event => root = Some(self.node(event, span, MAX_DEPTH)?),
            }
        }
        let empty = Node { place: FilePosition::START, value: Value::Table(Vec::new()) };
        Ok(root.filter(|root| !matches!(root.value, Value::Null)).unwrap_or(empty))
    }

    fn node(&mut self, event: Event<'a>, span: Span, depth: usize) -> Result<Node, Mistake> {
        let Some(depth) = depth.checked_sub(1) else {
            return Err(wrong(span, "tables are nested too deeply"));
        };
        let anchored = match &event {
            Event::Alias(_) => true,
            Event::Scalar(_, _, anchor, _)
            | Event::SequenceStart(anchor, _)
            | Event::MappingStart(anchor, _) => *anchor != 0,
            _ => false,
        };
        let tagged = match &event {
            Event::Scalar(_, _, _, tag)
            | Event::SequenceStart(_, tag)
            | Event::MappingStart(_, tag) => tag.is_some(),
            _ => false,
        };
        if anchored || tagged {
            let what =
                "anchors, aliases and tags of YAML are not supported: write the value itself";
            return Err(wrong(span, what));
        }
        let value = match event {
            Event::Scalar(text, ScalarStyle::Plain, _, _) => plain(&text),
            Event::Scalar(text, _, _, _) => Value::Text(text.into_owned()),
            Event::SequenceStart(..) => self.list(depth)?,
            Event::MappingStart(..) => self.table(depth)?,
            _ => return Err(wrong(span, "the file ends within a value")),
        };
        Ok(Node { place: place(&span.start), value })
    }

    fn list(&mut self, depth: usize) -> Result<Value, Mistake> {
        let mut elements = Vec::new();
        loop {
            match self.next()? {
                (Event::SequenceEnd, _) => return Ok(Value::List(elements)),
                (event, span) => elements.push(self.node(event, span, depth)?),
            }
        }
    }

    fn table(&mut self, depth: usize) -> Result<Value, Mistake> {
        let mut entries = Vec::new();
        let mut names = HashSet::new();
        loop {
            let (text, span) = match self.next()? {
                (Event::MappingEnd, _) => return Ok(Value::Table(entries)),
                (Event::Scalar(text, _, 0, None), span) => (text.into_owned(), span),
                (_, span) => return Err(wrong(span, "a key must be a plain word")),
            };
            let (event, value_span) = self.next()?;
            let value = self.node(event, value_span, depth)?;
            let at = place(&span.start);
            if names.insert(text.clone()) {
                entries.push((Key { text, place: at }, value));
            } else {
                let error = Error::new(ErrorKind::Invalid, format!("duplicate key `{text}`"));
                self.mistakes.push(Mistake::at(at, error.advise("give it once")));
            }
        }
    }
}

/// A scalar without quotes.
fn plain(text: &str) -> Value {
    let radix = |digits: &str, radix| i64::from_str_radix(digits, radix).ok();
    let integer = match (text.strip_prefix("0x"), text.strip_prefix("0o")) {
        (Some(digits), _) => radix(digits, 16),
        (_, Some(digits)) => radix(digits, 8),
        _ => text.parse().ok(),
    };
    // Rust takes `nan` and `infinity` for numbers; YAML does not.
    let is_number = text.bytes().any(|byte| byte.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "true" | "True" | "TRUE" => Value::Bool(true),
        "false" | "False" | "FALSE" => Value::Bool(false),
        _ => match (integer, text.parse()) {
            (Some(number), _) => Value::Integer(number),
            (None, Ok(number)) if is_number => Value::Float(number),
            _ => Value::Text(text.to_owned()),
        },
    }
}
