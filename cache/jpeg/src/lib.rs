//! Index of a JPEG's scan, and cuts by it.
//!
//! A scan is one stream of bits: a decoder reads all of it down to the last row of a crop, also the
//! rows above the crop and the columns beside it. An index has the positions of some minimum coded
//! units (MCUs, the blocks coded together) in the stream and the DC values before them. By it, a
//! JPEG of the crop's MCUs alone is cut out without loss, and any decoder decodes that.
//!
//! The index is a segment of the file itself, which other software skips. It is bound to the scan
//! by a checksum: software that changes the scan and keeps the segment makes it void.
//!
//! Only files with 8 bits a value, one or three components, all in one scan, sequential Huffman
//! codes and no restart intervals can have one.
//!
//! | file | job |
//! |---|---|
//! | `segments` | segments before the scan, of any file |
//! | `header` | the header of a file that can have an index |
//! | `bits`, `codes` | bits of a scan, and Huffman codes |
//! | `index` | the segment: made, written and read |
//! | `cut` | a JPEG of some MCUs |

mod bits;
mod codes;
mod cut;
mod header;
mod index;
mod segments;

pub use cut::Corner;
pub use index::{Indexed, Planned, add_index, plan};
pub use segments::segments;
