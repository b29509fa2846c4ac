"""Converts shards to a table of LanceDB, each field as bytes.

PYTHON to_lancedb.py < {"shards": [...], "fields": [...], "target": FOLDER}
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import islice

import lancedb
import pyarrow as pa
import shards

TABLE = "samples"
# Rows written at once.
ROWS = 256


def rows(sources: list[str], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Read the samples of all shards, in their order."""
    samples = (sample for source in sources for _, sample in shards.samples(source))
    while some := list(islice(samples, ROWS)):
        columns = [[sample[name] for sample in some] for name in schema.names]
        yield pa.record_batch(columns, schema=schema)


def convert(sources: list[str], fields: list[str], target: str) -> None:
    """Write `sources` into `target`."""
    schema = pa.schema([(extension, pa.large_binary()) for extension in fields])
    lancedb.connect(target).create_table(TABLE, rows(sources, schema), schema=schema)


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    convert(asked["shards"], asked["fields"], asked["target"])
