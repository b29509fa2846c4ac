"""Resume after preemption: SIGTERM ends the run after its step, and the next run goes on.

    python examples/cookbook/preemption.py 's3://bucket/train-{000..099}.tar' state.json

Slurm, Kubernetes and spot instances send SIGTERM some time before they kill. Save the model in the
same place; here the loader's state stands for it.
"""

import json
import os
import signal
import sys
from pathlib import Path

import forebay


def save(state: dict[str, object], path: Path) -> None:
    """Write the state as a whole, or leave the old one."""
    aside = path.with_suffix(".new")
    aside.write_text(json.dumps(state))
    os.replace(aside, path)


def main() -> None:
    """Train one epoch, over as many runs as it takes."""
    urls, path = sys.argv[1], Path(sys.argv[2])
    asked = []
    signal.signal(signal.SIGTERM, lambda *_: asked.append(True))
    print("ready", flush=True)
    loader = forebay.DataLoader(
        urls, batch_size=4, fields={"label": forebay.Int("cls")}, shuffle=True, seed=3
    )
    if path.exists():
        loader.load_state_dict(json.loads(path.read_text()))
    for batch in loader:
        print("trained", *batch["__key__"])
        if asked:
            # Counts the batches that were handed out: this one is not repeated.
            save(loader.state_dict(), path)
            print("preempted")
            return
    path.unlink(missing_ok=True)
    print("finished")


if __name__ == "__main__":
    main()
