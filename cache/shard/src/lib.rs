//! What a shard is: tar index, WebDataset key rules, sidecar and manifest.
