//! Receipt of an uploaded file: proof at the origin that the object with its name is this file.

use forebay_error::{Error, ErrorKind, Result};
use serde::{Deserialize, Serialize};

use crate::blocks;
use crate::id::FileId;
use crate::name::FileName;
use crate::sealed::{self, Document};

/// Receipt of an uploaded file. It lies at [`receipt_name`](crate::receipt_name).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// Identity of the file.
    pub id: FileId,
    /// Key below the checkpoint's URL.
    pub name: FileName,
    /// Length in bytes.
    pub len: u64,
    /// CRC32C of each [`BLOCK_BYTES`](crate::BLOCK_BYTES), the last one shorter.
    #[serde(with = "blocks")]
    pub blocks: Vec<u32>,
    /// Tag that the store gave the object: an ETag, or what stands for it.
    pub tag: String,
    /// Time at which the store had it whole, in milliseconds since 1970.
    pub uploaded_at_ms: u64,
}

impl Receipt {
    /// Returns the receipt as sealed bytes.
    ///
    /// # Errors
    /// `Invalid` if it contradicts itself.
    pub fn encode(&self) -> Result<Vec<u8>> {
        sealed::encode(self)
    }

    /// Reads what [`Receipt::encode`] wrote.
    ///
    /// # Errors
    /// `Corrupt` if any bit differs, `Invalid` if a newer release wrote it.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        sealed::decode(bytes)
    }

    /// Returns true if both are of the same bytes under the same name.
    pub(crate) fn is_of_same_file(&self, other: &Self) -> bool {
        (self.id, &self.name, self.len, &self.blocks)
            == (other.id, &other.name, other.len, &other.blocks)
    }
}

impl Document for Receipt {
    const NOUN: &'static str = "receipt";

    fn check(&self) -> Result<()> {
        if self.name.is_metadata() {
            let what = "`.metadata` has no receipt: its manifest describes it";
            return Err(Error::new(ErrorKind::Invalid, what).at("name", &self.name));
        }
        blocks::check(self.len, &self.blocks).map_err(|error| error.at("name", &self.name))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::samples;
    use crate::sealed::tests::{check_each_bit, check_seal, damage, sealed};

    proptest! {
        #[test]
        fn receipt_survives_its_bytes_and_finds_damage(
            receipt in samples::receipt(), damage in damage()
        ) {
            check_seal(&receipt, &damage);
        }
    }

    /// Text at the origin, which releases to come must read.
    #[test]
    fn format_of_a_receipt_never_changes() {
        let signed = "{\"format\":1,\"id\":\"000102030405060708090a0b0c0d0e0f\",\
            \"name\":\"a/__0_0.distcp\",\"len\":4194305,\"blocks\":\"e306928300000007\",\
            \"tag\":\"\\\"e\\\"\",\"uploaded_at_ms\":1700000000000";
        let receipt = Receipt {
            id: FileId::from_bytes(std::array::from_fn(|at| at as u8)),
            name: FileName::new("a/__0_0.distcp").unwrap(),
            len: 4_194_305,
            blocks: vec![0xE306_9283, 7],
            tag: "\"e\"".to_owned(),
            uploaded_at_ms: 1_700_000_000_000,
        };
        assert_eq!(receipt.encode().unwrap(), sealed(signed));
        assert_eq!(Receipt::decode(&sealed(signed)).unwrap(), receipt);
        check_each_bit(&receipt);
        for (part, other) in [
            ("a/__0_0.distcp", "../x"),
            ("a/__0_0.distcp", ".metadata"),
            ("\"len\":4194305", "\"len\":4194304"),
            ("\"len\":4194305", "\"len\":-1"),
            ("\"len\":4194305", "\"len\":18446744073709551615"),
            ("0007\"", "000\""),
            ("0001", "001"),
            (",\"tag\":\"\\\"e\\\"\"", ""),
        ] {
            let error = Receipt::decode(&sealed(&signed.replacen(part, other, 1))).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt, "{other}");
        }
    }

    #[test]
    fn contradictory_receipt_is_not_written() {
        let receipt = samples::receipt_of(1, "a", 5);
        let error = Receipt { blocks: Vec::new(), ..receipt }.encode().unwrap_err();
        assert_eq!((error.kind(), error.place("name")), (ErrorKind::Invalid, Some("a")));
    }
}
