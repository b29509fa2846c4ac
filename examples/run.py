"""Runs the example end to end: data, S3 server, embedded daemon, training, report, clean end.

The cache is always a fresh one, so that the first epoch is really cold.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

# The contest's scripts start and end daemons as well; they lie in the crate that embeds them.
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "cli/bench/contest"))

import daemons
import stage


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("urls", nargs="*", help="your own shards (default: photos made here)")
    parser.add_argument("--photos", type=int, default=2048, help="photos to make (default: 2048)")
    parser.add_argument("--samples", type=int, help="samples per epoch (default: all)")
    arguments = parser.parse_args()
    # A polite end of this process ends everything it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))

    environment = dict(os.environ)
    train: list[str | Path] = [sys.executable, Path(__file__).with_name("train.py")]
    train.append("--fresh-cache")
    if arguments.samples:
        train += ["--samples", str(arguments.samples)]
    with ExitStack() as stack:
        if arguments.urls:
            train += arguments.urls
        else:
            folder = stage.demo_shards(arguments.photos)
            urls = stage.shard_urls(folder)
            environment.update(stack.enter_context(stage.s3_server(folder)))
            manifest = stage.index(urls, folder, environment)
            train += [urls, "--manifest", manifest, "--classes", str(stage.DEMO_CLASSES)]
            print(f"training on {urls} from {environment['AWS_ENDPOINT_URL']}", flush=True)
        cache = stack.enter_context(stage.private_cache())
        stack.enter_context(daemons.private_daemon(environment, cache))
        trained = subprocess.run(train, env=environment, check=False).returncode
        daemon = daemons.status(environment)
        if trained == 0 and daemon is not None:
            cache = daemon["cache"]
            is_ring = daemon["tiers"][0]["engine"]["kind"] == "ring"
            engine = "io_uring" if is_ring else "threads"
            print(
                f"\ndaemon: fetched {cache['origin_bytes'] / 1e9:.3f} GB from the store"
                f" ({cache['fills']} shards), read {cache['tier_read_bytes'] / 1e9:.3f} GB"
                f" from its cache by {engine}"
            )
        return trained


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
