//! Generated images: small files that take long to decode.

use std::io::Write;

use flate2::Crc;
use flate2::write::ZlibEncoder;

/// A square PNG of black pixels: some kilobytes, whatever its decode time.
///
/// # Panics
/// Never: writes to memory do not fail.
#[must_use]
pub fn png(side: u32) -> Vec<u8> {
    let mut rows = ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
    let row = vec![0; 1 + 3 * side as usize];
    (0..side).for_each(|_| rows.write_all(&row).expect("memory takes it"));
    let size = side.to_be_bytes();
    // RGB with eight bits a channel, the standard compression and filters, not interlaced.
    let header = [&size[..], &size, &[8, 2, 0, 0, 0]].concat();
    let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
    let pixels = rows.finish().expect("memory takes it");
    for (kind, data) in [(b"IHDR", &header), (b"IDAT", &pixels), (b"IEND", &Vec::new())] {
        let mut crc = Crc::new();
        crc.update(kind);
        crc.update(data);
        file.extend(u32::try_from(data.len()).expect("some kilobytes").to_be_bytes());
        file.extend(kind);
        file.extend(data);
        file.extend(crc.sum().to_be_bytes());
    }
    file
}
