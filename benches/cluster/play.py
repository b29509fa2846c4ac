"""One epoch of a job; prints a line of JSON: samples, seconds, the longest wait for a batch.

    play.py URLS DAEMON RANK WORLD SEED SAMPLES [RECORD]

RECORD gets a line for each sample: its key, and the CRC-32 of its bytes. A job that fails prints
the kind of its error.
"""

from __future__ import annotations

import json
import sys
import time
import zlib
from pathlib import Path

import forebay


def main() -> None:
    """Play the epoch."""
    urls, daemon, rank, world, seed, samples, *record = sys.argv[1:]
    seen: list[str] = []
    since = last = time.monotonic()
    taken, longest = 0, 0.0
    try:
        loader = forebay.DataLoader(
            urls,
            fields={"raw": forebay.Bytes("bin")},
            daemon=daemon,
            shuffle=True,
            batch_size=16,
            rank=int(rank),
            world_size=int(world),
            seed=int(seed),
            epoch_samples=int(samples),
            framework="numpy",
        )
        for batch in loader:
            now = time.monotonic()
            if taken:
                longest = max(longest, now - last)
            taken, last = taken + len(batch["raw"]), now
            if record:
                pairs = zip(batch["__key__"], batch["raw"], strict=True)
                seen += [f"{key} {zlib.crc32(raw)}" for key, raw in pairs]
    except forebay.ForebayError as error:
        print(json.dumps({"error": type(error).__name__, "text": str(error)}))
        raise SystemExit(3) from error
    seconds = time.monotonic() - since
    if record:
        Path(record[0]).write_text("\n".join(seen))
    print(json.dumps({"samples": taken, "seconds": seconds, "longest": longest}))


if __name__ == "__main__":
    main()
