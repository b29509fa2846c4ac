# An example: a pool of GPU nodes on EKS whose local NVMe drives are one file system, and Forebay's
# chart on it. No cloud has run it; read it before you apply it.

locals {
  # Mount point of all local drives together, where EKS's node setup puts them.
  drives = "/mnt/k8s-disks/0"
  cache  = "${local.drives}/forebay"
  # Nodes of this pool, and no others, run the daemon.
  label = "forebay.example/pool"

  # Configuration of the node's setup: the drives become one striped file system.
  node_config = <<-EOT
    apiVersion: node.eks.aws/v1alpha1
    kind: NodeConfig
    spec:
      instance:
        localStorage:
          strategy: RAID0
  EOT

  # The tier's folder must exist on the drives; the chart does not make it. The kubelet starts after
  # the drives are mounted, and after this script.
  folder = <<-EOT
    #!/bin/sh
    set -eu
    mkdir -p /etc/systemd/system/kubelet.service.d
    cat >/etc/systemd/system/kubelet.service.d/50-forebay.conf <<'UNIT'
    [Service]
    ExecStartPre=/bin/sh -c 'mountpoint -q ${local.drives} && mkdir -p ${local.cache}'
    UNIT
    systemctl daemon-reload
  EOT
}

resource "aws_launch_template" "pool" {
  name_prefix = "${var.cluster_name}-forebay-"

  metadata_options {
    http_tokens = "required"
  }

  user_data = base64encode(join("\n", [
    "MIME-Version: 1.0",
    "Content-Type: multipart/mixed; boundary=\"PART\"",
    "",
    "--PART",
    "Content-Type: application/node.eks.aws",
    "",
    local.node_config,
    "--PART",
    "Content-Type: text/x-shellscript",
    "",
    local.folder,
    "--PART--",
    "",
  ]))
}

resource "aws_eks_node_group" "pool" {
  cluster_name    = var.cluster_name
  node_group_name = "forebay"
  node_role_arn   = var.node_role_arn
  subnet_ids      = var.subnet_ids
  instance_types  = [var.instance_type]
  ami_type        = var.ami_type
  labels          = { (local.label) = "true" }

  launch_template {
    id      = aws_launch_template.pool.id
    version = aws_launch_template.pool.latest_version
  }

  scaling_config {
    desired_size = var.nodes
    max_size     = var.nodes
    min_size     = var.nodes
  }

  # A node that is replaced loses its cache.
  update_config {
    max_unavailable = 1
  }

  taint {
    key    = "nvidia.com/gpu"
    value  = "true"
    effect = "NO_SCHEDULE"
  }
}

resource "helm_release" "forebay" {
  name             = "forebay"
  namespace        = "forebay"
  create_namespace = true
  chart            = "${path.module}/../../helm/forebay"

  values = concat([yamlencode({
    image        = { repository = var.image_repository }
    nodeSelector = { (local.label) = "true" }
    tiers = [{
      name     = "nvme0"
      hostPath = local.cache
      capacity = var.cache_capacity
    }]
  })], var.values)

  depends_on = [aws_eks_node_group.pool]
}
