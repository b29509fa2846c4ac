"""Documents packed to a budget of tokens, for attention of variable length.

    forebay index 's3://bucket/text-{000..099}.tar' -o text.json --members
    python examples/cookbook/packed_text.py 's3://bucket/text-{000..099}.tar' text.json

No token is padding, every rank has the same number of steps, and at each step the ranks have nearly
the same number of tokens.
"""

import sys
from typing import Any

import torch

import forebay

# Tokens of one rank and step.
BUDGET = 4096


def attention(values: torch.Tensor, batch: dict[str, Any]) -> torch.Tensor:
    """Stand in for ``flash_attn_varlen_func``, which takes the same ends of documents."""
    parts = values.tensor_split(batch["cu_seqlens"][1:-1].long())
    each = torch.nn.functional.scaled_dot_product_attention
    return torch.cat(
        [each(part[None], part[None], part[None], is_causal=True)[0] for part in parts]
    )


def main() -> None:
    """Read one epoch."""
    urls, manifest = sys.argv[1:]
    loader = forebay.DataLoader(
        urls,
        # Written as uint16, without a header. Their sizes tell the lengths beforehand.
        fields={"tokens": forebay.Npy("bin", dtype="uint16", shape=(-1,))},
        batch_by=forebay.Tokens("tokens", budget=BUDGET),
        pack=True,
        shuffle=True,
        manifest=manifest,
        framework="torch",
        device="cpu",
    )
    words, places = torch.nn.Embedding(1 << 16, 8), torch.nn.Embedding(BUDGET, 8)
    steps = tokens = 0
    for batch in loader:
        values = words(batch["tokens"].int()) + places(batch["position_ids"])
        assert attention(values, batch).shape == values.shape
        steps += 1
        # Documents that are False there are repeated ones.
        tokens += int(batch["tokens_len"][batch["__valid__"]].sum())
    print(f"{steps} steps, {tokens} tokens")


if __name__ == "__main__":
    main()
