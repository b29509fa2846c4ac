"""State of a rank: tensors as an optimizer's, of a given number of bytes."""

from __future__ import annotations

import torch

# Largest tensor. Layers of billions of parameters have tensors of 32 MB and more.
TENSOR_MAX = 64 << 20
# Bytes of a float32.
ITEM = 4


def make(size: int, rank: int) -> dict[str, torch.Tensor]:
    """Return float32 tensors of `size` bytes together, with names that no other rank has."""
    generator = torch.Generator().manual_seed(rank)
    tensors = {}
    for number, at in enumerate(range(0, size, TENSOR_MAX)):
        items = min(TENSOR_MAX, size - at) // ITEM
        tensors[f"rank{rank}.layer{number}"] = torch.rand(items, generator=generator)
    return tensors


def blank(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return tensors of the same shapes, whose memory is there already."""
    return {name: torch.full_like(tensor, -1.0) for name, tensor in tensors.items()}


def check(found: dict[str, torch.Tensor], wanted: dict[str, torch.Tensor]) -> None:
    """End the run if a restore gave other bytes than were saved."""
    for name, tensor in wanted.items():
        if not torch.equal(found[name], tensor):
            raise SystemExit(f"{name} was restored with other values")
