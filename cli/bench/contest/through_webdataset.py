"""Released WebDataset with torch's DataLoader.

It is set up the way its authors recommend for speed. Samples are batched inside the
workers, workers persist between epochs, tensors cross to the trainer through shared memory; each
number of workers, all ways to decode and all ways to take batches over are tried, and the fastest
counts.
"""

from __future__ import annotations

import webdataset
from contender import Loader, Task, serve
from handover import handed_over
from torch_workers import recipe, settings


def make(task: Task, repeats: int) -> Loader:
    """Make the loader that `task` asks for."""
    made, shards = recipe(task), task.shards * repeats
    # A worker for which there is no shard is no error: it has nothing to do.
    samples = webdataset.WebDataset(shards, shardshuffle=False, empty_check=False)
    samples = samples.to_tuple(*task.fields)
    if made.decode is not None:
        samples = samples.map_tuple(made.decode, int)
    batches = samples.batched(task.batch_size, collation_fn=made.collate)
    loader = webdataset.WebLoader(batches, batch_size=None, **settings(task))
    return Loader(handed_over(loader, task.configuration, made.finish))


if __name__ == "__main__":
    serve(make)
