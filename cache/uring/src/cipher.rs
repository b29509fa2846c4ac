//! AES-256-XTS over a file's blocks, by aws-lc.
//!
//! Each block of [`GRANULE`] bytes is encrypted by itself. Its tweak is the file's tweak plus the
//! block's number, so equal blocks differ on the disk, and a block that was moved elsewhere becomes
//! noise. XTS hides bytes and does not authenticate them: checksums of the plain bytes detect a
//! change.

use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;
use std::{ffi, fmt};

use aws_lc_sys::{
    EVP_CIPHER_CTX, EVP_CIPHER_CTX_free, EVP_CIPHER_CTX_new, EVP_CipherInit_ex, EVP_CipherUpdate,
    EVP_aes_256_xts, EVP_sha256, HMAC, RAND_bytes,
};
use forebay_error::{Error, ErrorKind, Result};
use zeroize::Zeroizing;

use crate::GRANULE;

/// Bytes of an AES-256-XTS key: one key for the blocks and one for the tweaks.
pub const CIPHER_KEY_BYTES: usize = 64;

/// Value of C's calls that succeed.
const SUCCESS: ffi::c_int = 1;

/// A key of AES-256-XTS. Its bytes are zeroed when it drops, and are shown nowhere.
pub struct CipherKey(Zeroizing<[u8; CIPHER_KEY_BYTES]>);

impl CipherKey {
    /// Takes over the bytes of a key.
    ///
    /// # Errors
    /// `Invalid` if both halves are equal: XTS is weak with such a key.
    pub fn new(bytes: Zeroizing<[u8; CIPHER_KEY_BYTES]>) -> Result<Self> {
        let (blocks, tweaks) = bytes.split_at(CIPHER_KEY_BYTES / 2);
        match blocks == tweaks {
            true => Err(Error::new(ErrorKind::Invalid, "both halves of a key are equal")),
            false => Ok(Self(bytes)),
        }
    }
}

impl fmt::Debug for CipherKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("CipherKey")
    }
}

/// The cipher of one file.
#[derive(Debug, Clone)]
pub struct FileCipher {
    key: Arc<CipherKey>,
    tweak: u128,
}

/// Direction of a cipher, as aws-lc counts.
#[derive(Clone, Copy)]
enum Way {
    Decrypt = 0,
    Encrypt = 1,
}

impl FileCipher {
    /// The cipher of a file. `tweak`: the tweak of its first block, different for each file.
    #[must_use]
    pub fn new(key: &Arc<CipherKey>, tweak: u128) -> Self {
        Self { key: Arc::clone(key), tweak }
    }

    /// Encrypts whole blocks in place. `offset`: place of the first in the file.
    ///
    /// # Errors
    /// `Invalid` for a part of a block; `Unavailable` without memory.
    pub fn encrypt(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.convert(Way::Encrypt, offset, None, bytes)
    }

    /// Encrypts whole blocks into other memory of the same length.
    ///
    /// # Errors
    /// As [`FileCipher::encrypt`].
    pub fn encrypt_into(&self, offset: u64, from: &[u8], into: &mut [u8]) -> Result<()> {
        self.convert(Way::Encrypt, offset, Some(from), into)
    }

    /// Decrypts whole blocks in place.
    ///
    /// # Errors
    /// As [`FileCipher::encrypt`].
    pub fn decrypt(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        self.convert(Way::Decrypt, offset, None, bytes)
    }

    fn convert(&self, way: Way, offset: u64, from: Option<&[u8]>, into: &mut [u8]) -> Result<()> {
        let (unit, len) = (GRANULE as u64, into.len());
        let is_whole = offset.is_multiple_of(unit) && len.is_multiple_of(GRANULE);
        if !is_whole || from.is_some_and(|from| from.len() != len) {
            let what = "only whole blocks can be encrypted";
            return Err(Error::new(ErrorKind::Invalid, what).at("offset", offset).at("len", len));
        }
        let mut context = Context::new(&self.key, way)?;
        let mut tweak = self.tweak.wrapping_add(u128::from(offset / unit));
        for at in (0..len).step_by(GRANULE) {
            let block = &mut into[at..at + GRANULE];
            let from = from.map(|from| &from[at..at + GRANULE]);
            context.convert(tweak, from, block)?;
            tweak = tweak.wrapping_add(1);
        }
        Ok(())
    }
}

/// Context of aws-lc. It is zeroed when it drops.
struct Context(NonNull<EVP_CIPHER_CTX>);

impl Context {
    fn new(key: &CipherKey, way: Way) -> Result<Self> {
        // SAFETY: the call takes nothing, and returns null or a context that is freed below.
        let context = NonNull::new(unsafe { EVP_CIPHER_CTX_new() }).ok_or_else(failed)?;
        let context = Self(context);
        // SAFETY: the context lives, and the key has the 64 bytes that this cipher reads. Without a
        // tweak none is read.
        let set = unsafe {
            EVP_CipherInit_ex(
                context.0.as_ptr(),
                EVP_aes_256_xts(),
                null_mut(),
                key.0.as_ptr(),
                null(),
                way as ffi::c_int,
            )
        };
        if set == SUCCESS { Ok(context) } else { Err(failed()) }
    }

    /// Converts one block, from other memory or in place.
    fn convert(&mut self, tweak: u128, from: Option<&[u8]>, block: &mut [u8]) -> Result<()> {
        let tweak = tweak.to_le_bytes();
        let mut wrote: ffi::c_int = 0;
        // The direction stays as it is.
        const SAME: ffi::c_int = -1;
        // SAFETY: the context lives and has its key; the cipher reads 16 bytes of tweak.
        let set = unsafe {
            EVP_CipherInit_ex(self.0.as_ptr(), null(), null_mut(), null(), tweak.as_ptr(), SAME)
        };
        if set != SUCCESS {
            return Err(failed());
        }
        let len = ffi::c_int::try_from(block.len()).map_err(|_| failed())?;
        let into = block.as_mut_ptr();
        let from = from.map_or(into.cast_const(), <[u8]>::as_ptr);
        // SAFETY: both ranges have `len` bytes (the caller cut them alike) and are either the same
        // or, one being borrowed mutably, disjoint, which are the two cases that aws-lc allows. XTS
        // writes as many bytes as it reads.
        let done = unsafe { EVP_CipherUpdate(self.0.as_ptr(), into, &raw mut wrote, from, len) };
        if done == SUCCESS && wrote == len { Ok(()) } else { Err(failed()) }
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the context came from `EVP_CIPHER_CTX_new` and is freed once. aws-lc zeroes it.
        unsafe { EVP_CIPHER_CTX_free(self.0.as_ptr()) }
    }
}

/// Bytes of a value of [`mac`].
pub const MAC_BYTES: usize = 32;

/// Returns the HMAC-SHA-256 of a text under a secret, for keys that are derived from another.
///
/// # Errors
/// `Unavailable` without memory.
pub fn mac(secret: &[u8], text: &[u8]) -> Result<Zeroizing<[u8; MAC_BYTES]>> {
    let mut value = Zeroizing::new([0; MAC_BYTES]);
    let mut wrote: ffi::c_uint = 0;
    // SAFETY: pointers and lengths are those of the slices, and SHA-256 writes 32 bytes.
    let done = unsafe {
        HMAC(
            EVP_sha256(),
            secret.as_ptr().cast(),
            secret.len(),
            text.as_ptr(),
            text.len(),
            value.as_mut_ptr(),
            &raw mut wrote,
        )
    };
    if done.is_null() || wrote as usize != MAC_BYTES { Err(failed()) } else { Ok(value) }
}

/// Fills memory with random bytes that nobody can guess.
///
/// # Errors
/// `Unavailable` if the system has none.
pub fn fill_random(bytes: &mut [u8]) -> Result<()> {
    // SAFETY: the pointer and the length are those of the slice.
    let done = unsafe { RAND_bytes(bytes.as_mut_ptr(), bytes.len()) };
    if done == SUCCESS { Ok(()) } else { Err(failed()) }
}

fn failed() -> Error {
    Error::new(ErrorKind::Unavailable, "the cipher's library failed")
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use proptest::prelude::*;

    use super::*;

    fn key(seed: u8) -> Arc<CipherKey> {
        let mut bytes = Zeroizing::new([0; CIPHER_KEY_BYTES]);
        (0..).zip(bytes.iter_mut()).for_each(|(at, byte): (u8, _)| *byte = at.wrapping_add(seed));
        Arc::new(CipherKey::new(bytes).unwrap())
    }

    /// Bytes of a hexadecimal text.
    fn hex(text: &str) -> Vec<u8> {
        let digits = text.as_bytes().chunks(2);
        let byte = |pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
        digits.map(byte).collect()
    }

    #[test]
    fn cipher_is_the_xts_of_ieee_1619() {
        // Vector 10 of IEEE 1619-2007: AES-256, a data unit of 512 bytes, here its first 16.
        let halves = "2718281828459045235360287471352662497757247093699959574966967627\
                      3141592653589793238462643383279502884197169399375105820974944592";
        let mut bytes = Zeroizing::new([0; CIPHER_KEY_BYTES]);
        bytes.copy_from_slice(&hex(halves));
        let key = Arc::new(CipherKey::new(bytes).unwrap());
        let mut block: Vec<u8> = (0..GRANULE).map(|at| (at % 256) as u8).collect();
        FileCipher::new(&key, 0xff).encrypt(0, &mut block).unwrap();
        assert_eq!(block[..16], hex("1c3b3a102f770386e4836c99e370cf9b"));
        // The next data unit begins anew: it is the same as at its own offset.
        let plain: Vec<u8> = (0..GRANULE).map(|at| (at % 256) as u8).collect();
        let mut second = plain.clone();
        FileCipher::new(&key, 0xfe).encrypt(GRANULE as u64, &mut second).unwrap();
        assert_eq!(second, block);
    }

    #[test]
    fn keys_with_equal_halves_are_rejected() {
        let error = CipherKey::new(Zeroizing::new([7; CIPHER_KEY_BYTES])).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }

    #[test]
    fn parts_of_blocks_are_rejected() {
        let cipher = FileCipher::new(&key(0), 1);
        for (offset, len) in [(0, GRANULE - 1), (512, GRANULE), (0, 16)] {
            let error = cipher.decrypt(offset, &mut vec![0; len]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{offset} {len}");
        }
        let error = cipher.encrypt_into(0, &[0; GRANULE], &mut [0; 2 * GRANULE]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Equal plain blocks differ wherever file, place or key differs, and only the same file,
        /// place and key give the plain bytes again.
        #[test]
        fn tweak_is_one_of_its_block(
            tweak: u128, other in 1_u128.., first in 0_u64..1 << 40, blocks in 1_usize..5, byte: u8,
        ) {
            let len = blocks * GRANULE;
            let (plain, offset) = (vec![byte; len], first * GRANULE as u64);
            // Far enough from each other that no block of one file has a tweak of the other.
            let distance = (other << 64).max(1 << 64);
            let files = [
                FileCipher::new(&key(0), tweak),
                FileCipher::new(&key(0), tweak.wrapping_add(distance)),
                FileCipher::new(&key(1), tweak),
            ];
            let mut seen = HashSet::new();
            for file in &files {
                let mut sealed = vec![0; len];
                file.encrypt_into(offset, &plain, &mut sealed).unwrap();
                for block in sealed.chunks(GRANULE) {
                    prop_assert!(seen.insert(block.to_vec()), "two blocks are equal");
                }
                let mut in_place = plain.clone();
                file.encrypt(offset, &mut in_place).unwrap();
                prop_assert_eq!(&in_place, &sealed);
                let mut moved = sealed.clone();
                file.decrypt(offset + GRANULE as u64, &mut moved).unwrap();
                prop_assert_ne!(&moved, &plain, "a moved block is readable");
                file.decrypt(offset, &mut sealed).unwrap();
                prop_assert_eq!(&sealed, &plain);
            }
        }
    }

    #[test]
    fn mac_is_that_of_rfc_4231() {
        // Test case 2.
        let wanted = hex("5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        assert_eq!(mac(b"Jefe", b"what do ya want for nothing?").unwrap()[..], wanted);
    }

    #[test]
    fn random_bytes_differ() {
        let mut bytes = [[0; 32]; 2];
        bytes.iter_mut().for_each(|bytes| fill_random(bytes).unwrap());
        assert_ne!(bytes[0], bytes[1]);
    }
}
