"""Shards from LitData's chunks: LitData reads them, webdataset writes them."""

from litdata import StreamingDataset
from torchvision.io import encode_png
from webdataset import ShardWriter


def main() -> None:
    """Write every sample once."""
    with ShardWriter("shards/train-%06d.tar", maxsize=1e9) as shards:
        for number, sample in enumerate(StreamingDataset("litdata/train")):
            image = encode_png(sample["image"]).numpy().tobytes()
            shards.write({"__key__": f"{number:09}", "png": image, "cls": int(sample["label"])})


if __name__ == "__main__":
    main()
