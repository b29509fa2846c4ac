//! Who makes the rows of images and arrays, and why: what a loader's `stats()["decoders"]` counts.

use std::collections::BTreeMap;

/// How many rows of images and arrays each made, and why: by the names of both.
pub type Routes = BTreeMap<(&'static str, &'static str), u64>;

/// The CPU, as it is counted.
pub(crate) const CPU: &str = "cpu";

/// The GPU's kernel that puts arrays side by side, as it is counted.
pub(crate) const GATHER: &str = "gather";

/// Why a GPU makes a row: nothing speaks against it.
pub(crate) const PLAIN: &str = "plain";

/// Why the CPU makes a row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// No GPU decodes for this loader.
    Device,
    /// It is no JPEG.
    Format,
    /// Its header cannot be read; the CPU's decoder says what is wrong, or knows better.
    Header,
    /// It comes in several scans: progressive, or one for each component.
    Scans,
    /// It is coded arithmetically, without loss, or in differences.
    Coding,
    /// Its values have more than 8 bits.
    Depth,
    /// Its components are not brightness and two of colour, or brightness alone.
    Colors,
    /// Its colours are not stored at the full, or half the resolution.
    Sampling,
    /// It is larger than an engine takes.
    Size,
    /// It is cut off, or has no end marker.
    End,
    /// The GPU's decoder does not take it.
    Refused,
    /// The GPU's decoder failed at its batch.
    Failed,
    /// Arrays of its batch differ in shape or type, or one is missing: each is a tensor of its own.
    Shapes,
    /// An array of its batch is not stored in C order, or not in the machine's byte order.
    Order,
    /// An array's bytes may be no booleans until they were looked at.
    Booleans,
    /// It is padded, or one of those in one piece: that the CPU writes.
    Ragged,
}

impl Reason {
    /// As it is counted.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Device => "no_device",
            Self::Format => "format",
            Self::Header => "header",
            Self::Scans => "scans",
            Self::Coding => "coding",
            Self::Depth => "depth",
            Self::Colors => "colors",
            Self::Sampling => "sampling",
            Self::Size => "size",
            Self::End => "end",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Shapes => "shapes",
            Self::Order => "order",
            Self::Booleans => "booleans",
            Self::Ragged => "ragged",
        }
    }
}
