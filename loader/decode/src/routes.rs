//! Decoders of image and array rows, with reasons: the counts of a loader's `stats()["decoders"]`.

use std::collections::BTreeMap;

/// Number of image and array rows by the names of decoder and reason.
pub type Routes = BTreeMap<(&'static str, &'static str), u64>;

/// Name of the CPU in the counts.
pub(crate) const CPU: &str = "cpu";

/// Name of the CPU where a photo's index let it read the crop alone.
pub(crate) const CPU_INDEX: &str = "cpu_index";

/// Name of the GPU's kernel that gathers arrays.
pub(crate) const GATHER: &str = "gather";

/// Reason of rows made by a GPU.
pub(crate) const PLAIN: &str = "plain";

/// Reason of rows made by the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reason {
    /// No GPU decodes for this loader.
    Device,
    /// Not a JPEG.
    Format,
    /// Unreadable header; the CPU's decoder reports the fault, or succeeds.
    Header,
    /// Several scans: progressive, or one per component.
    Scans,
    /// Arithmetic, lossless or differential coding.
    Coding,
    /// More than 8 bits per value.
    Depth,
    /// Components other than brightness and two of colour, or brightness alone.
    Colors,
    /// Colour resolution other than full or half.
    Sampling,
    /// Larger than an engine accepts.
    Size,
    /// Truncated, or without an end marker.
    End,
    /// Rejected by the GPU's decoder.
    Refused,
    /// In a batch on which the GPU's decoder failed, or was not asked for after many failures.
    Failed,
    /// Arrays of its batch differ in shape or type, or one is missing: each is a tensor of its own.
    Shapes,
    /// An array of its batch is not in C order, or not in the machine's byte order.
    Order,
    /// An array's bytes need a check for booleans.
    Booleans,
    /// Padded or joined, which the CPU does.
    Ragged,
    /// A mode, interpolation or dtype of images that the GPU's kernel lacks.
    Mode,
}

impl Reason {
    /// Returns its name in the counts.
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
            Self::Mode => "mode",
            Self::Shapes => "shapes",
            Self::Order => "order",
            Self::Booleans => "booleans",
            Self::Ragged => "ragged",
        }
    }
}
