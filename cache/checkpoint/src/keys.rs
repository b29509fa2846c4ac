//! Places of a checkpoint's objects below its URL.

use crate::id::FileId;

/// Folder of Forebay's documents below a checkpoint's URL. No file of a job lies in it.
pub(crate) const FOLDER: &str = ".forebay";

/// Key of the manifest below the checkpoint's URL.
pub const MANIFEST: &str = ".forebay/manifest.json";

/// Returns the key of a file's receipt below the checkpoint's URL.
#[must_use]
pub fn receipt_name(id: FileId) -> String {
    format!("{FOLDER}/{id}.json")
}

/// Returns the URL of an object by its key; `url` is the checkpoint's, without a slash at its end.
#[must_use]
pub fn object_url(url: &str, name: impl AsRef<str>) -> String {
    format!("{url}/{}", name.as_ref())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::FileName;

    #[test]
    fn documents_lie_where_no_file_of_a_job_can() {
        let id = FileId::from_bytes([0xab; 16]);
        for key in [receipt_name(id), MANIFEST.to_owned()] {
            assert!(FileName::new(key).is_err());
        }
        let url = object_url("s3://runs/a/step-7", receipt_name(id));
        assert_eq!(url, format!("s3://runs/a/step-7/.forebay/{}.json", "ab".repeat(16)));
        let name = FileName::new("x/__0_0.distcp").unwrap();
        assert_eq!(object_url("/d/a", &name), "/d/a/x/__0_0.distcp");
    }
}
