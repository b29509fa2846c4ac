//! Names of fields that come from columns of a table.
//!
//! A field has the ending of its content: `jpg`, `cls`, `txt`. Where several columns have one
//! ending, each has its column's name in front: `title.txt`, `caption.txt`.

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};

use forebay_error::{Error, ErrorKind, Result};

/// Digits of the keys of samples that have none. They sort as the rows do up to a billion.
const KEY_DIGITS: usize = 9;

/// Options of a table's columns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Columns {
    /// Names of fields by column; `None` leaves the column out.
    pub fields: BTreeMap<String, Option<String>>,
    /// Column that holds the keys; `None`: samples are numbered.
    pub key: Option<String>,
}

impl Columns {
    /// Returns true if nothing was chosen.
    #[must_use]
    pub fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Returns true if a column becomes no field.
    pub(super) fn leaves_out(&self, column: &str) -> bool {
        self.key.as_deref() == Some(column) || matches!(self.fields.get(column), Some(None))
    }

    /// Refuses names of columns that are not there.
    pub(super) fn check(&self, known: &[String]) -> Result<()> {
        let named = self.fields.keys().chain(&self.key);
        match named.into_iter().find(|column| !known.contains(column)) {
            None => Ok(()),
            Some(column) => Err(Error::new(ErrorKind::NotFound, "there is no such column")
                .at("column", column)
                .advise(format!("the columns are {}", known.join(", ")))),
        }
    }
}

/// Returns the key of a sample without one, by its number from 0.
pub(super) fn numbered_key(number: u64) -> String {
    format!("{number:0KEY_DIGITS$}")
}

/// Content of a column, as far as it decides a field's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Class {
    /// Files: the ending follows from the first bytes.
    File,
    Integer,
    Real,
    Text,
    Json,
    Array,
    Pickle,
}

impl Class {
    /// The ending of a field; of a file, the one for bytes that are no known format.
    pub(super) fn ending(self) -> &'static str {
        match self {
            Self::File => "bin",
            Self::Integer => "cls",
            Self::Real => "float",
            Self::Text => "txt",
            Self::Json => "json",
            Self::Array => "npy",
            Self::Pickle => "pkl",
        }
    }
}

/// Name of one column's fields.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Name {
    /// As the user chose.
    Chosen(String),
    /// The ending alone.
    Bare,
    /// The column's name and the ending.
    Long(String),
}

impl Name {
    /// Names of columns of these classes, in their order.
    pub(super) fn of(columns: &[(String, Class)], options: &Columns) -> Vec<Self> {
        let chosen = |column: &str| options.fields.get(column).cloned().flatten();
        let (mut once, mut again) = (HashSet::new(), HashSet::new());
        for (_, class) in columns {
            if !once.insert(class) {
                again.insert(class);
            }
        }
        let name = |(column, class): &(String, Class)| match chosen(column) {
            Some(name) => Self::Chosen(name),
            None if again.contains(class) => Self::Long(column.clone()),
            None => Self::Bare,
        };
        columns.iter().map(name).collect()
    }

    /// Returns the field's name for content with an ending.
    pub(super) fn field<'a>(&'a self, ending: &'a str) -> Cow<'a, str> {
        match self {
            Self::Chosen(name) => Cow::Borrowed(name),
            Self::Bare => Cow::Borrowed(ending),
            Self::Long(column) => Cow::Owned(format!("{column}.{ending}")),
        }
    }
}

/// Bytes at the start of a file that tell its format.
pub(super) const MAGIC_BYTES: usize = 12;

/// Formats by their first bytes.
const FORMATS: [(&[u8], &str); 12] = [
    (b"\xff\xd8\xff", "jpg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF8", "gif"),
    (b"BM", "bmp"),
    (b"II*\0", "tif"),
    (b"MM\0*", "tif"),
    (b"fLaC", "flac"),
    (b"ID3", "mp3"),
    (b"\xff\xfb", "mp3"),
    (b"OggS", "ogg"),
    (b"\x93NUMPY", "npy"),
    (b"%PDF", "pdf"),
];

/// Formats within a RIFF file, by the bytes behind its length.
const RIFFS: [(&[u8], &str); 2] = [(b"WEBP", "webp"), (b"WAVE", "wav")];

/// Returns the ending of a file that begins with `bytes`.
pub(super) fn sniff(bytes: &[u8]) -> &'static str {
    let riff = bytes.strip_prefix(b"RIFF").and_then(|rest| rest.get(4..));
    let found = match riff {
        Some(kind) => RIFFS.iter().find(|(begin, _)| kind.starts_with(begin)),
        None => FORMATS.iter().find(|(begin, _)| bytes.starts_with(begin)),
    };
    found.map_or(Class::File.ending(), |(_, ending)| ending)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_of_one_ending_keep_their_names() {
        let columns = [
            ("image".to_owned(), Class::File),
            ("label".to_owned(), Class::Integer),
            ("title".to_owned(), Class::Text),
            ("caption".to_owned(), Class::Text),
        ];
        let mut options = Columns::default();
        let names = |options: &Columns| -> Vec<String> {
            let names = Name::of(&columns, options);
            let ending = |at: usize| columns[at].1.ending();
            names.iter().enumerate().map(|(at, name)| name.field(ending(at)).into_owned()).collect()
        };
        assert_eq!(names(&options), ["bin", "cls", "title.txt", "caption.txt"]);
        options.fields.insert("title".to_owned(), Some("name".to_owned()));
        assert_eq!(names(&options), ["bin", "cls", "name", "caption.txt"]);
        let known = [String::from("image")];
        assert_eq!(options.check(&known).unwrap_err().place("column"), Some("title"));
    }

    #[test]
    fn format_follows_from_the_first_bytes() {
        for (bytes, ending) in [
            (b"\xff\xd8\xff\xe0\0\x10JFIF".as_slice(), "jpg"),
            (b"RIFF\x01\0\0\0WEBPVP8 ", "webp"),
            (b"RIFF\x01\0\0\0", "bin"),
            (b"RIFF", "bin"),
            (b"", "bin"),
            (b"text", "bin"),
        ] {
            assert_eq!(sniff(bytes), ending, "{bytes:?}");
        }
    }
}
