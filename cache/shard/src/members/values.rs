//! A sample's value in a column.

/// Longest text of a column, in bytes: columns are for labels and languages; the length of a
/// caption is a column of its own.
pub const TEXT_MAX: usize = 256;

/// A sample's value in a column.
#[derive(Debug, Clone, PartialEq, Default)]
pub enum Value {
    /// None: the sample lacks the member, or the member lacks the value.
    #[default]
    Absent,
    /// An integer; of JSON's `true` and `false`, 1 and 0.
    Int(i64),
    /// A number that is no integer. Never NaN, which is absent.
    Float(f64),
    /// A text of [`TEXT_MAX`] bytes at most.
    Text(String),
}
