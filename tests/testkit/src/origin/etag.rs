//! ETags of files that were not uploaded.
//!
//! `s3s-fs` keeps an uploaded object's ETag in a file and hashes every other object whole at each
//! request, so ranged reads of large shards are quadratic. This module records the ETag of such a
//! file where `s3s-fs` looks for it, derived from length, time and inode: it changes with the file.
//! ETags of uploads are left alone.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;

/// Prefix of ETags made here.
const PREFIX: &str = "file-";

/// Returns the ETag, without quotes, of the file behind `key`.
pub(super) async fn of_file(dir: &Path, key: &str) -> Option<String> {
    let metadata = tokio::fs::metadata(dir.join(key)).await.ok().filter(|m| m.is_file())?;
    let (len, inode) = (metadata.len(), metadata.ino());
    let nanoseconds =
        i128::from(metadata.mtime()) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
    Some(format!("{PREFIX}{len:x}-{nanoseconds:x}-{inode:x}"))
}

/// Records the ETag of the object behind `key`, if it is a file that was not uploaded.
pub(super) async fn record(dir: &Path, key: &str) {
    let Some((bucket, object)) = key.split_once('/') else { return };
    let Some(etag) = of_file(dir, key).await else { return };
    let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
    let name = format!(".bucket-{}.object-{}.internal.json", encode(bucket), encode(object));
    let path = dir.join(name);
    let text = tokio::fs::read(&path).await.unwrap_or_default();
    let known = serde_json::from_slice::<serde_json::Value>(&text).ok();
    let known = known.as_ref().and_then(|info| info.get("e_tag")?.as_str());
    if known.is_none_or(|known| known.starts_with(PREFIX) && known != etag) {
        let info = serde_json::json!({ "e_tag": etag }).to_string();
        // Renamed into place, so that a concurrent request reads a whole file. Without the record
        // the object is only slower.
        let partial = path.with_extension("part");
        if tokio::fs::write(&partial, info).await.is_ok() {
            drop(tokio::fs::rename(&partial, &path).await);
        }
    }
}
