//! Mistakes in a configuration, and their places.
//!
//! A mistake has a line and a column wherever the file contains the wrong words.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use forebay_error::{Error, ErrorKind};
use serde::{Deserialize, Serialize};

use super::tree::FilePosition;

/// One thing that is wrong with a file.
#[derive(Debug, Clone)]
pub struct Mistake {
    /// Place; none if it concerns the file as a whole.
    pub place: Option<FilePosition>,
    /// Mistake and correction. It does not name the file.
    pub error: Error,
}

impl Mistake {
    /// Returns a mistake at `place`.
    pub(super) fn at(place: FilePosition, error: Error) -> Self {
        Self { place: Some(place), error }
    }

    /// Returns a mistake in the syntax of the file's language.
    pub(super) fn of_syntax(place: Option<FilePosition>, what: impl Into<String>) -> Self {
        Self { place, error: Error::new(ErrorKind::Invalid, what) }
    }

    /// As an error that names the place in `file`.
    pub fn located(&self, file: Option<&Path>) -> Error {
        let error = match self.place {
            Some(FilePosition { line, column }) => {
                self.error.clone().at("line", line).at("column", column)
            }
            None => self.error.clone(),
        };
        match file {
            Some(file) => error.at("config", file.display()),
            None => error,
        }
    }

    /// As linters write it: `FILE:LINE:COLUMN: what; advice`.
    pub(super) fn line<'a>(&'a self, file: &'a Path) -> impl fmt::Display + 'a {
        Line(self, file)
    }
}

/// A mistake as it is told to whoever did not read the file.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Told {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    /// Line, from 1.
    pub line: Option<usize>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    /// Column, from 1.
    pub column: Option<usize>,
    /// Description.
    pub message: String,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    /// Names and values of its place.
    pub places: BTreeMap<String, String>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    /// Advice to whoever writes the file.
    pub advice: Option<String>,
    /// All of that, as linters write it.
    pub text: String,
}

impl Told {
    /// The mistake, as made in `file`.
    #[must_use]
    pub fn of(mistake: &Mistake, file: &Path) -> Self {
        let places = mistake.error.places();
        Self {
            line: mistake.place.map(|place| place.line),
            column: mistake.place.map(|place| place.column),
            message: mistake.error.message().to_owned(),
            places: places.map(|(name, value)| (name.to_owned(), value.to_owned())).collect(),
            advice: mistake.error.advice().map(str::to_owned),
            text: mistake.line(file).to_string(),
        }
    }
}

struct Line<'a>(&'a Mistake, &'a Path);

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(mistake, file) = self;
        write!(f, "{}:", file.display())?;
        if let Some(place) = mistake.place {
            write!(f, "{place}:")?;
        }
        write!(f, " {}", mistake.error)
    }
}

/// All of them as one error: the first, and how to see the others.
pub(super) fn first(mistakes: &[Mistake], file: Option<&Path>) -> Error {
    let Some(first) = mistakes.first() else {
        return Error::new(ErrorKind::Invalid, "the configuration cannot be used");
    };
    let error = first.located(file);
    let (more, Some(file)) = (mistakes.len() - 1, file) else { return error };
    if more == 0 {
        return error;
    }
    let others = format!("`forebay config check {}` lists {more} more", file.display());
    match error.advice().map(str::to_owned) {
        Some(advice) => error.advise(format!("{advice} ({others})")),
        None => error.advise(others),
    }
}
