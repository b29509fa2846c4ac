r"""JAX on several hosts: each process loads its part of a global array.

    RANK=0 WORLD_SIZE=2 COORDINATOR=host0:1234 python examples/frameworks/hosts.py \
        'shards-{0..9}.tar' --manifest m.json --seen seen

The loader finds its rank in jax.distributed. A global batch is an array that is sharded over the
processes' devices; each process gives the rows that it loaded.
"""

import os

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from job import Seen, arguments

import forebay


def main() -> None:
    """Sum a label over every batch of one epoch."""
    options = arguments(__doc__ or "")
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(
        os.environ["COORDINATOR"], int(os.environ["WORLD_SIZE"]), int(os.environ["RANK"])
    )
    loader = forebay.DataLoader(
        options.urls,
        batch_size=options.batch_size,
        fields={"label": forebay.Float("cls")},
        shuffle=True,
        manifest=options.manifest,
        # All processes' parts of an array have one shape.
        pad_last=True,
        framework="jax",
    )
    mesh = Mesh(jax.devices(), ("batch",))
    rows = NamedSharding(mesh, PartitionSpec("batch"))
    total = jax.jit(lambda label, valid: (label * valid).sum())
    seen, sum_ = Seen(options.seen, jax.process_index()), 0.0
    for batch in loader:
        label, valid = (
            jax.make_array_from_process_local_data(rows, batch[name])
            for name in ("label", "__valid__")
        )
        sum_ += float(total(label, valid))
        seen.add(batch)
    print(f"the labels sum to {sum_}")


if __name__ == "__main__":
    main()
