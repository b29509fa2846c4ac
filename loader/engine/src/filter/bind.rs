//! Columns of a filter, looked up in an index.

use std::collections::HashMap;

use forebay_error::{Error, ErrorKind, Result};
use forebay_shard::members::{Column, ColumnInfo, ColumnKind};

use super::condition::{Comparison, Condition, Literal, Test};
use super::parse::position;

/// Least likeness of a name that may be meant, from 0 to 1: below it names share some letters only.
const LIKENESS_MIN: f64 = 0.7;

/// A condition over the columns of one index.
#[derive(Debug)]
pub(super) struct Bound(Condition<usize>);

impl Bound {
    /// Looks the columns of `condition`, which was read from `text`, up in `columns`.
    ///
    /// # Errors
    /// `Invalid` with the position.
    pub(super) fn new(text: &str, condition: Condition, columns: &[ColumnInfo]) -> Result<Self> {
        bound(text, condition, columns).map(Self)
    }

    /// Returns the numbers of its columns.
    pub(super) fn columns(&self) -> Vec<usize> {
        fn add(condition: &Condition<usize>, into: &mut Vec<usize>) {
            match condition {
                Condition::Any(all) | Condition::All(all) => all.iter().for_each(|c| add(c, into)),
                Condition::Not(one) => add(one, into),
                Condition::Test(test) => into.push(test.column),
            }
        }
        let mut columns = Vec::new();
        add(&self.0, &mut columns);
        columns
    }

    /// Returns for each sample of a block if it passes.
    pub(super) fn passes(&self, columns: &HashMap<usize, Column>, samples: usize) -> Vec<bool> {
        self.0.holds(columns, samples)
    }
}

fn bound(text: &str, condition: Condition, columns: &[ColumnInfo]) -> Result<Condition<usize>> {
    let all = |conditions: Vec<Condition>| {
        conditions.into_iter().map(|one| bound(text, one, columns)).collect::<Result<Vec<_>>>()
    };
    Ok(match condition {
        Condition::Any(conditions) => Condition::Any(all(conditions)?),
        Condition::All(conditions) => Condition::All(all(conditions)?),
        Condition::Not(one) => Condition::Not(Box::new(bound(text, *one, columns)?)),
        Condition::Test(Test { column, at, comparison, is_negated }) => {
            let found = columns.iter().position(|info| info.name == column);
            let found = found.ok_or_else(|| unknown(text, &column, at, columns))?;
            check(text, &columns[found], &comparison)?;
            Condition::Test(Test { column: found, at, comparison, is_negated })
        }
    })
}

fn unknown(text: &str, column: &str, at: usize, columns: &[ColumnInfo]) -> Error {
    let error = Error::new(ErrorKind::Invalid, "a filter names an unknown column")
        .at("where", text)
        .at("position", position(text, at))
        .at("column", column);
    let names = columns.iter().map(|info| info.name.as_str());
    let add = "add columns with `forebay index --members --columns json:NAME,…`";
    nearest(error, column, names, "columns", add)
}

/// Adds to the error about an unknown name which ones there are (`what`), the one that may be
/// meant, and the advice `or`.
pub(crate) fn nearest<'a>(
    error: Error,
    name: &str,
    known: impl Iterator<Item = &'a str>,
    what: &'static str,
    or: &str,
) -> Error {
    let names: Vec<&str> = known.collect();
    let likeness = |known: &str| strsim::jaro_winkler(&known.to_lowercase(), &name.to_lowercase());
    let nearest = names.iter().map(|name| (likeness(name), name));
    let nearest = nearest.max_by(|one, other| one.0.total_cmp(&other.0));
    let nearest = nearest.filter(|(likeness, _)| *likeness >= LIKENESS_MIN);
    let (known, error) = match names.is_empty() {
        true => (format!("the member index has no {what}"), error),
        false => {
            let known = names.join(", ");
            (format!("the {what} are {known}"), error.at(what, known))
        }
    };
    match nearest {
        Some((_, name)) => {
            error.at("meant", name).advise(format!("did you mean {name}? {known}; {or}"))
        }
        None => error.advise(format!("{known}; {or}")),
    }
}

/// Rejects values that the column cannot have.
fn check(text: &str, column: &ColumnInfo, comparison: &Comparison) -> Result<()> {
    let wrong = |what: &str, at: usize| {
        Err(Error::new(ErrorKind::Invalid, what)
            .at("where", text)
            .at("position", position(text, at))
            .at("column", &column.name)
            .at("kind", column.kind.name()))
    };
    let (literals, is_ordered) = match comparison {
        Comparison::With(operator, literal) => (vec![literal], !operator.is_equality()),
        Comparison::In(literals) => (literals.iter().collect(), false),
        Comparison::Between(low, high) => (vec![low, high], true),
        Comparison::Null => (Vec::new(), false),
    };
    for (literal, at) in literals {
        match (literal, column.kind) {
            (Literal::Text(_), ColumnKind::Int | ColumnKind::Float) => {
                return wrong("a filter compares numbers with a text", *at);
            }
            (Literal::Int(_) | Literal::Float(_), ColumnKind::Text) => {
                return wrong("a filter compares texts with a number", *at);
            }
            (Literal::Text(_), _) if is_ordered => {
                return wrong("texts have no order here; use =, != or in", *at);
            }
            _ => {}
        }
    }
    Ok(())
}
