output "node_selector" {
  description = "Label of the nodes, for the training jobs."
  value       = { (local.label) = "true" }
}

output "cache_path" {
  description = "Folder of the cache on each node."
  value       = local.cache
}
