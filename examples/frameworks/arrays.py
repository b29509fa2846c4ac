r"""NumPy, without any framework: RANK and WORLD_SIZE say which part a process loads.

    RANK=0 WORLD_SIZE=2 python examples/frameworks/arrays.py 'shards-{0..9}.tar' \
        --manifest m.json --seen seen

Each rank runs it with its own `RANK`.
"""

import os

from job import Seen, arguments

import forebay


def main() -> None:
    """Sum the labels of this process's part of one epoch."""
    options = arguments(__doc__ or "")
    loader = forebay.DataLoader(
        options.urls,
        batch_size=options.batch_size,
        fields={"label": forebay.Int("cls")},
        shuffle=True,
        manifest=options.manifest,
        framework="numpy",
    )
    seen, sum_ = Seen(options.seen, int(os.environ["RANK"])), 0
    for batch in loader:
        sum_ += int(batch["label"][batch["__valid__"]].sum())
        seen.add(batch)
    print(f"the labels here sum to {sum_}")


if __name__ == "__main__":
    main()
