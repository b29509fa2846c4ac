"""Writes data sets of other libraries beside this file, and what their samples are.

They are kept, so that a test needs neither library. Written with mosaicml-streaming 0.13.0 and
datasets 5.2.0:

    pip install mosaicml-streaming datasets && python make.py
"""

import io
import json
import pathlib
import shutil

import numpy
from PIL import Image

HERE = pathlib.Path(__file__).parent
SAMPLES = 6
CLASSES = ["ant", "bee", "cat"]


def picture(number, kind):
    """A picture of 4 by 3 pixels, encoded."""
    pixels = numpy.full((3, 4, 3), number * 20, numpy.uint8)
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, kind)
    return data.getvalue()


def npy(array):
    data = io.BytesIO()
    numpy.save(data, array)
    return data.getvalue()


def mds_sample(number):
    """Values of every encoding that becomes a field."""
    return {
        "jpeg": Image.open(io.BytesIO(picture(number, "JPEG"))),
        "png": Image.open(io.BytesIO(picture(number, "PNG"))),
        "pil": Image.fromarray(numpy.full((2, 3, 3), number, numpy.uint8)),
        "gray": Image.fromarray(numpy.full((2, 3), number, numpy.uint8)),
        "bytes": picture(number, "PNG") if number % 2 else b"raw" * number,
        "str": f"text {number} é",
        "int": -number,
        "uint8": number,
        "int16": -300 * number,
        "uint64": 2**63 + number,
        "float16": number / 4,
        "float32": number / 8,
        "float64": number / 10,
        "str_int": 10**30 + number,
        "json": {"number": number, "list": [1, None]},
        "pkl": ("tuple", number),
        "any": numpy.arange(number + 1, dtype=numpy.int32),
        "typed": numpy.full((number + 1, 300), number, numpy.float16),
        "fixed": numpy.full((2, 3), number, numpy.float64),
    }


ENCODINGS = {
    "any": "ndarray",
    "typed": "ndarray:float16",
    "fixed": "ndarray:float64:2,3",
    "gray": "pil",
}


def mds_fields(sample):
    """Return the fields that a sample should have."""
    # float16 and float32 are exact here; repr is the shortest text that gives the same number.
    text = {name: str(sample[name]).encode() for name in sample}
    real = lambda value: (repr(value)[:-2] if value == int(value) else repr(value)).encode()
    json_text = json.dumps(sample["json"]).encode()
    raw = sample["bytes"]
    return {
        "jpeg.jpg": None,
        "png.png": None,
        "bytes." + ("png" if raw[:1] == b"\x89" else "bin"): raw,
        "txt": text["str"],
        **{f"{name}.cls": text[name] for name in ("int", "uint8", "int16", "uint64", "str_int")},
        **{f"{name}.float": real(sample[name]) for name in ("float16", "float32", "float64")},
        "json": json_text,
        "pkl": None,
        **{
            f"{name}.npy": npy(numpy.asarray(sample[name]))
            for name in ("pil", "gray", "any", "typed", "fixed")
        },
    }


def write_mds():
    from streaming import MDSWriter
    from streaming.base.format.mds.encodings import mds_encode

    folder = HERE / "mds"
    shutil.rmtree(folder, ignore_errors=True)
    columns = {name: ENCODINGS.get(name, name) for name in mds_sample(0)}
    wanted = []
    with MDSWriter(out=str(folder), columns=columns, size_limit=9_000) as out:
        for number in range(SAMPLES):
            sample = mds_sample(number)
            out.write(sample)
            fields = mds_fields(sample)
            # These are the encoded bytes as they are.
            for field, column in (("jpeg.jpg", "jpeg"), ("png.png", "png"), ("pkl", "pkl")):
                fields[field] = mds_encode(column, sample[column])
            wanted.append(fields)
    return wanted


def write_parquet():
    import pyarrow
    from datasets import ClassLabel, Dataset, DatasetInfo, Features, List, Value
    from datasets import Image as Picture

    def row(number):
        kind = "PNG" if number % 2 else "JPEG"
        return {
            "image": {"bytes": picture(number, kind), "path": None},
            "label": number % len(CLASSES),
            # A row without text.
            "caption": None if number == 4 else f"caption {number} é",
            "score": number / 4,
            "box": [number, number + 1],
            "id": f"id-{number}",
        }

    features = Features(
        {
            "image": Picture(),
            "label": ClassLabel(names=CLASSES),
            "caption": Value("string"),
            "score": Value("float32"),
            "box": List(Value("int64")),
            "id": Value("string"),
        }
    )
    rows = [row(number) for number in range(SAMPLES)]
    for part, some in enumerate((rows[:4], rows[4:])):
        table = pyarrow.Table.from_pylist(some, schema=features.arrow_schema)
        data = Dataset(table, info=DatasetInfo(features=features), fingerprint=f"part-{part}")
        data.to_parquet(str(HERE / f"train-{part:05}-of-00002.parquet"), batch_size=2)
    wanted = []
    for number, one in enumerate(rows):
        fields = {
            "cls": str(one["label"]).encode(),
            "float": (repr(one["score"]) if number % 4 else repr(number // 4)).encode(),
            "json": json.dumps(one["box"], separators=(",", ":")).encode(),
            "id.txt": one["id"].encode(),
        }
        fields["png" if number % 2 else "jpg"] = one["image"]["bytes"]
        if one["caption"]:
            fields["caption.txt"] = one["caption"].encode()
        wanted.append(fields)
    return wanted


if __name__ == "__main__":
    found = {"mds": write_mds(), "parquet": write_parquet(), "classes": CLASSES}
    for name in ("mds", "parquet"):
        found[name] = [
            {field: data.hex() for field, data in sorted(sample.items())} for sample in found[name]
        ]
    (HERE / "samples.json").write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
