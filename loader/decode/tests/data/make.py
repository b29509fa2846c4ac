"""Makes the fixtures beside this file: images, and what torchvision's v2 transforms make of them.

Run with Python 3.10+, numpy, pillow, torch and torchvision; README.md names the versions used.
The images are synthetic (smooth shades, edges, texture), so that they carry no one's rights.
"""

import io
import json
import math
import pathlib

import numpy as np
import torch
from PIL import Image
from torchvision import io as tvio
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

HERE = pathlib.Path(__file__).parent


def photo(height: int, width: int, seed: int) -> np.ndarray:
    """A picture with the frequencies of a photograph: shades, discs with hard edges, grain."""
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:height, 0:width].astype(np.float64)
    picture = np.zeros((height, width, 3))
    for _ in range(6):
        fx, fy = rng.normal(0, 3.0, 2)
        phase, tint = rng.uniform(0, 6.28), rng.uniform(-40, 40, 3)
        wave = np.sin(2 * np.pi * (fx * x / width + fy * y / height) + phase)
        picture += wave[..., None] * tint
    picture += 128
    for _ in range(12):
        cx, cy, r = rng.uniform(0, width), rng.uniform(0, height), rng.uniform(3, height / 4)
        picture[(x - cx) ** 2 + (y - cy) ** 2 < r * r] += rng.uniform(-70, 70, 3)
    picture += rng.normal(0, 4, (height, width, 1))
    return np.clip(np.rint(picture), 0, 255).astype(np.uint8)


def save(name: str, image: Image.Image, **options: object) -> None:
    stream = io.BytesIO()
    image.save(stream, **options)
    assert len(stream.getvalue()) < 20_000, (name, len(stream.getvalue()))
    (HERE / name).write_bytes(stream.getvalue())


def images() -> None:
    wide = Image.fromarray(photo(150, 200, 1))
    tall = Image.fromarray(photo(201, 133, 2))
    small = Image.fromarray(photo(40, 61, 3))
    save("wide-420.jpg", wide, format="JPEG", quality=85)
    save("tall-444.jpg", tall, format="JPEG", quality=75, subsampling=0)
    save("tall-422.jpg", tall, format="JPEG", quality=80, subsampling=1)
    save("wide-optimized.jpg", wide, format="JPEG", quality=85, optimize=True)
    # Tables that were made for it have no codes for differences between some columns.
    ramp = Image.fromarray(np.tile(np.linspace(0, 255, 200), (96, 1)).astype(np.uint8))
    save("ramp-optimized.jpg", ramp.convert("RGB"), format="JPEG", quality=95, optimize=True)
    save("wide-restarts.jpg", wide, format="JPEG", quality=85, restart_marker_blocks=4)
    save("wide-progressive.jpg", wide, format="JPEG", quality=85, progressive=True)
    save("gray.jpg", wide.convert("L"), format="JPEG", quality=85)
    save("cmyk.jpg", small.convert("CMYK"), format="JPEG", quality=85)
    save("rgb.png", small, format="PNG")
    alpha = small.convert("RGBA")
    alpha.putalpha(small.convert("L"))
    save("rgba.png", alpha, format="PNG")
    save("palette.png", small.quantize(32), format="PNG")
    save("gray.png", small.convert("L"), format="PNG")
    save("bits.png", small.convert("1"), format="PNG")
    save("lossy.webp", small, format="WEBP", quality=80)
    save("lossless.webp", small, format="WEBP", lossless=True)
    save("alpha.webp", alpha, format="WEBP", quality=80)
    for width in [1, 3, 4, 5]:
        for name, subsampling in [("420", 2), ("422", 1)]:
            tiny = small.crop((20, 10, 20 + width, 10 + 6 - width))
            save(f"tiny-{width}-{name}.jpg", tiny, format="JPEG", quality=85, subsampling=subsampling)
    upended()
    for orientation in range(1, 9):
        note = Image.Exif()
        note[0x0112] = orientation
        save(f"exif-{orientation}.jpg", small, format="JPEG", quality=85, exif=note)
    deep = np.asarray(small.convert("L")).astype(np.uint16) * 257 + 3
    save("gray16.png", Image.fromarray(np.minimum(deep, 65535).astype(np.uint16)), format="PNG")


def upended() -> None:
    """Colour at half the resolution downwards alone, which Pillow does not write.

    Both kinds have two blocks of brightness to one of each colour, so that the header alone makes the
    other of one: the picture is torn up, and as good as any.
    """
    jpeg = bytearray((HERE / "tall-422.jpg").read_bytes())
    frame = jpeg.index(b"\xff\xc0")
    height, width = (int.from_bytes(jpeg[frame + at : frame + at + 2], "big") for at in (5, 7))
    height, width = -(-height // 8) * 16, -(-width // 16) * 8
    jpeg[frame + 5 : frame + 9] = height.to_bytes(2, "big") + width.to_bytes(2, "big")
    assert jpeg[frame + 11] == 0x21
    jpeg[frame + 11] = 0x12
    (HERE / "tall-440.jpg").write_bytes(jpeg)


def decoded(name: str) -> torch.Tensor:
    raw = torch.frombuffer(bytearray((HERE / name).read_bytes()), dtype=torch.uint8)
    turn = name.startswith("exif-")
    image = tvio.decode_image(raw, mode=tvio.ImageReadMode.RGB, apply_exif_orientation=turn)
    if image.dtype == torch.uint16:
        image = (image.to(torch.int32) >> 8).to(torch.uint8)
    return image


def expect(name: str, tensor: torch.Tensor) -> None:
    np.save(HERE / name, tensor.numpy())


def outcomes() -> None:
    """For each image: what it decodes to; for some: resize, center crop and boxes, all uint8."""
    for path in sorted([*HERE.glob("*.jpg"), *HERE.glob("*.png"), *HERE.glob("*.webp")]):
        # A whole picture would be large; every third pixel each way shows any difference.
        expect(f"{path.name}.pixels.npy", decoded(path.name)[:, ::3, ::3].contiguous())
    for name in ["wide-420.jpg", "tall-444.jpg", "rgb.png"]:
        image = decoded(name)
        expect(f"{name}.resize-48x64.npy", F.resize(image, [48, 64], antialias=True))
        expect(f"{name}.resize-64-center-56.npy", F.center_crop(F.resize(image, [64], antialias=True), [56, 56]))
        expect(f"{name}.center-64x70.npy", F.center_crop(image, [64, 70]))
    boxes = []
    for name, box in [
        ("wide-420.jpg", (10, 20, 100, 130)),
        ("wide-420.jpg", (0, 171, 33, 29)),
        ("tall-444.jpg", (77, 3, 121, 90)),
        ("tall-444.jpg", (5, 5, 64, 64)),
    ]:
        top, left, height, width = box
        out = F.resized_crop(decoded(name), top, left, height, width, [64, 64], antialias=True)
        saved = f"{name}.crop-{len(boxes)}.npy"
        expect(saved, out)
        boxes.append({"image": name, "box": box, "expected": saved})
    (HERE / "boxes.json").write_text(json.dumps(boxes, indent=1) + "\n")


def normalised() -> None:
    """The whole chain to float32, as a training script writes it."""
    chain = v2.Compose(
        [
            v2.Resize([16, 24], antialias=True),
            v2.ToDtype(torch.float32, scale=True),
            v2.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
        ]
    )
    expect("wide-420.jpg.normalised-16x24.npy", chain(decoded("wide-420.jpg")))


M64 = (1 << 64) - 1


def splitmix64(word: int) -> int:
    word = (word + 0x9E3779B97F4A7C15) & M64
    word = ((word ^ (word >> 30)) * 0xBF58476D1CE4E5B9) & M64
    word = ((word ^ (word >> 27)) * 0x94D049BB133111EB) & M64
    return word ^ (word >> 31)


def philox(counter: list[int], key: list[int]) -> list[int]:
    c, k = list(counter), list(key)
    for _ in range(10):
        a, b = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [(b >> 32) ^ c[1] ^ k[0], b & 0xFFFFFFFF, (a >> 32) ^ c[3] ^ k[1], a & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def numbers(draw: dict[str, int], purpose: int):
    """The 64-bit numbers of a draw, written anew from the description in src/draw.rs."""
    key = 0
    for part in ("seed", "epoch", "stream", "field", "view"):
        key = splitmix64(key ^ draw[part])
    block = 0
    while True:
        position = draw["position"]
        words = philox([position & 0xFFFFFFFF, position >> 32, purpose, block], [key & 0xFFFFFFFF, key >> 32])
        yield words[0] | words[1] << 32
        yield words[2] | words[3] << 32
        block += 1


def random_box(height: int, width: int, scale, ratio, source) -> list[int]:
    """RandomResizedCrop's choice with `source` in the place of torch's generator."""

    def uniform(low: float, high: float) -> float:
        return low + (high - low) * ((next(source) >> 11) * 2.0**-53)

    def below(end: int) -> int:
        return next(source) * end >> 64

    for _ in range(10):
        target = height * width * uniform(*scale)
        aspect = math.exp(uniform(math.log(ratio[0]), math.log(ratio[1])))
        w, h = round(math.sqrt(target * aspect)), round(math.sqrt(target / aspect))
        if 0 < w <= width and 0 < h <= height:
            top = below(height - h + 1)
            return [top, below(width - w + 1), h, w]
    if width / height < ratio[0]:
        w, h = width, round(width / ratio[0])
    elif width / height > ratio[1]:
        w, h = round(height * ratio[1]), height
    else:
        w, h = width, height
    return [(height - h) // 2, (width - w) // 2, h, w]


def draws() -> None:
    """Golden boxes and flips: any change to the mapping from draw to crop shows here."""
    golden = []
    for i in range(48):
        rng = np.random.default_rng(1000 + i)
        draw = {name: int(rng.integers(0, 2**63)) >> int(rng.integers(0, 63))
                for name in ("seed", "epoch", "stream", "position", "field", "view")}
        height, width = [(375, 500), (500, 375), (224, 224), (20, 900), (900, 20), (1, 1)][i % 6]
        scale, ratio = [((0.08, 1.0), (3 / 4, 4 / 3)), ((0.5, 0.9), (0.2, 5.0))][i // 6 % 2]
        golden.append({**draw, "image": [height, width], "scale": scale, "ratio": ratio,
                       "box": random_box(height, width, scale, ratio, numbers(draw, 0)),
                       "flip": next(numbers(draw, 1)) * 2 >> 64 == 1})
    lines = ",\n".join(json.dumps(entry) for entry in golden)
    (HERE / "draws.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    draws()
    images()
    outcomes()
    normalised()
