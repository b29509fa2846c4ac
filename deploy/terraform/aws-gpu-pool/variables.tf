variable "cluster_name" {
  description = "Name of the EKS cluster."
  type        = string
}

variable "node_role_arn" {
  description = "ARN of the IAM role of the nodes."
  type        = string
}

variable "subnet_ids" {
  description = "Subnets of the nodes: one zone, so that nodes share their caches without fees."
  type        = list(string)
}

variable "instance_type" {
  description = "Instance type with GPUs and local NVMe."
  type        = string
  default     = "p5.48xlarge"
}

variable "ami_type" {
  description = "Kind of machine image; this one has NVIDIA's driver."
  type        = string
  default     = "AL2023_x86_64_NVIDIA"
}

variable "nodes" {
  description = "Number of nodes."
  type        = number
  default     = 2

  validation {
    condition     = var.nodes >= 1
    error_message = "A pool has one node or more."
  }
}

variable "cache_capacity" {
  description = "Capacity of the tier on each node, as in Forebay's configuration, such as 20TiB."
  type        = string
}

variable "image_repository" {
  description = "Repository of the image with Forebay."
  type        = string
}

variable "values" {
  description = "Further values of the chart, as YAML texts; later ones win."
  type        = list(string)
  default     = []
}
