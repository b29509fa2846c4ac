//! One sample in a batch's memory. Rule: describing it copies nothing.

use forebay_error::{Error, ErrorKind, Result};

use crate::spec::FieldSpec;

/// One sample: its origin and the bytes of its fields.
#[derive(Debug, Clone, Copy)]
pub struct Record<'a> {
    /// The sample's key: its members' common name.
    pub key: &'a str,
    /// The shard it was read from.
    pub url: &'a str,
    /// Data set of the mixture that the shard belongs to.
    pub stream: u64,
    /// The sample's position in the global order.
    pub position: u64,
    /// Byte offset of the sample in its shard, if known.
    pub offset: Option<u64>,
    /// Field names (the part after the key's dot) and their bytes, in the shard's order.
    pub fields: &'a [(&'a str, &'a [u8])],
    /// Names of its fields in the shard, if a requested one is missing: for the message.
    pub has: &'a [String],
}

impl<'a> Record<'a> {
    /// Returns a sample of no shard, as measurements of decoding alone use.
    #[must_use]
    pub fn unplaced(position: u64, fields: &'a [(&'a str, &'a [u8])]) -> Self {
        Self { key: "", url: "", stream: 0, position, offset: None, fields, has: &[] }
    }

    /// Returns the index in `fields` of the first of `spec`'s alternatives that the sample has.
    ///
    /// # Errors
    /// [`ErrorKind::BadSample`] if it has none and the field is not optional.
    pub(crate) fn find(&self, spec: &FieldSpec) -> Result<Option<usize>> {
        let matching = |source: &String| {
            self.fields.iter().position(|(name, _)| name.eq_ignore_ascii_case(source))
        };
        match spec.source.iter().find_map(matching) {
            None if !spec.optional => Err(self.lacks(spec)),
            found => Ok(found),
        }
    }

    /// Returns the bytes of the first alternative present.
    ///
    /// # Errors
    /// As [`Record::find`].
    pub(crate) fn bytes(&self, spec: &FieldSpec) -> Result<Option<&'a [u8]>> {
        Ok(self.find(spec)?.map(|index| self.fields[index].1))
    }

    /// Adds the sample's identity to `error`.
    pub(crate) fn locate(&self, error: Error, spec: &FieldSpec) -> Error {
        let error = error.at("field", &spec.name).at("key", self.key).at("url", self.url);
        self.offset.into_iter().fold(error, |error, offset| error.at("offset", offset))
    }

    fn lacks(&self, spec: &FieldSpec) -> Error {
        let wanted = spec.source.join(";");
        Error::new(ErrorKind::BadSample, format!("the sample has no field {wanted:?}")).advise(
            format!("it has {}; name one of them or set optional=True", self.has.join(", ")),
        )
    }
}

/// Makes the error of a sample that cannot be used.
pub(crate) fn bad(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::BadSample, message)
}
