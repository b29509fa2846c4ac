"""Images beyond 8-bit colour: gray, palettes, 16 bits, and crops in common."""

from __future__ import annotations

import io

import numpy
import pytest

import forebay

Picture = pytest.importorskip("PIL.Image")

SIDE = 40


def encoded(picture, form="PNG", **options) -> bytes:
    file = io.BytesIO()
    picture.save(file, form, **options)
    return file.getvalue()


def colors(number: int, side: int = SIDE) -> numpy.ndarray:
    shape = (side, side, 3)
    return numpy.random.default_rng(number).integers(0, 256, shape, dtype=numpy.uint8)


def classes(number: int) -> numpy.ndarray:
    return numpy.random.default_rng(number).integers(0, 21, (SIDE, SIDE), dtype=numpy.uint8)


def depths(number: int) -> numpy.ndarray:
    return numpy.random.default_rng(number).integers(0, 2**16, (SIDE, SIDE), dtype=numpy.uint16)


def palette(numbers: numpy.ndarray):
    picture = Picture.fromarray(numbers, "P")
    picture.putpalette([value for number in range(256) for value in (number, 255 - number, 7)])
    return picture


@pytest.fixture
def one(make, shard_of):
    """A function that reads one sample of these members by a field."""

    def read(field, **members):
        url = shard_of([("s", {name.replace("_", "."): data for name, data in members.items()})])
        loader = make(url, fields={"it": field}, batch_size=1)
        (batch,) = loader
        return batch["it"][0]

    return read


def test_gray_images_have_one_channel(one):
    picture = Picture.fromarray(colors(1))
    expected = numpy.asarray(picture.convert("L"))
    assert (one(forebay.Image("png", mode="gray"), png=encoded(picture)) == expected[None]).all()
    last = forebay.Image("png", mode="gray", layout="NHWC")
    assert (one(last, png=encoded(picture)) == expected[..., None]).all()
    gray = encoded(picture.convert("L"), "JPEG", quality=95)
    found = one(forebay.Image("jpg", mode="gray"), jpg=gray)
    assert (found[0] == numpy.asarray(Picture.open(io.BytesIO(gray)))).all()
    scaled = forebay.Image("png", mode="gray", dtype="float32", mean=0.5, std=(0.25,))
    found = one(scaled, png=encoded(picture))
    assert numpy.abs(found[0] - (expected / 255 - 0.5) / 0.25).max() < 1e-5


def test_palette_numbers_are_not_colors(one):
    numbers = classes(2)
    field = forebay.Image("png", mode="palette")
    for picture in (palette(numbers), Picture.fromarray(numbers)):
        found = one(field, png=encoded(picture))
        assert (found.shape, found.dtype) == ((1, SIDE, SIDE), numpy.uint8)
        assert (found[0] == numbers).all()
    few = numpy.minimum(numbers, 3)[:, :37]
    for bits in (2, 4):
        assert (one(field, png=encoded(palette(few), bits=bits))[0] == few).all()
    bits = Picture.fromarray(few > 1)
    assert (one(field, png=encoded(bits))[0] == (few > 1)).all()
    wide = one(forebay.Image("png", mode="palette", dtype="uint16"), png=encoded(palette(numbers)))
    assert (wide.dtype, (wide[0] == numbers).all()) == (numpy.uint16, True)
    instances = depths(3)
    deep = one(
        forebay.Image("png", mode="palette", dtype="uint16"),
        png=encoded(Picture.fromarray(instances)),
    )
    assert (deep[0] == instances).all()


def test_image_without_one_channel_has_no_palette(one):
    with pytest.raises(forebay.BadSample):
        one(forebay.Image("png", mode="palette"), png=encoded(Picture.fromarray(colors(1))))
    with pytest.raises(forebay.BadSample):
        one(forebay.Image("jpg", mode="palette"), jpg=encoded(Picture.fromarray(colors(1)), "JPEG"))
    with pytest.raises(forebay.BadSample, match="uint16"):
        one(forebay.Image("png", mode="palette"), png=encoded(Picture.fromarray(depths(1))))


@pytest.mark.parametrize("size", [17, 64, (23, 80)])
def test_nearest_pixels_are_those_of_pillow(one, size):
    height, width = size if isinstance(size, tuple) else (size, size)
    numbers = classes(4)
    expected = Picture.fromarray(numbers).resize((width, height), Picture.Resampling.NEAREST)
    field = forebay.Image("png", mode="palette", size=size)
    assert (one(field, png=encoded(palette(numbers)))[0] == numpy.asarray(expected)).all()
    picture = Picture.fromarray(colors(5))
    expected = numpy.asarray(picture.resize((width, height), Picture.Resampling.NEAREST))
    field = forebay.Image("png", size=size, interpolation="nearest")
    assert (one(field, png=encoded(picture)) == expected.transpose(2, 0, 1)).all()


def test_sixteen_bits_are_kept(one):
    values = depths(6)
    png = encoded(Picture.fromarray(values))
    exact = one(forebay.Image("png", mode="gray", dtype="uint16"), png=png)
    assert (exact.dtype, (exact[0] == values).all()) == (numpy.uint16, True)
    shares = (values / 65535).astype(numpy.float32)
    found = one(forebay.Image("png", mode="gray", dtype="float32"), png=png)
    assert numpy.abs(found[0] - shares).max() < 1e-7
    spread = one(forebay.Image("png", dtype="float32"), png=png)
    assert spread.shape == (3, SIDE, SIDE)
    assert numpy.abs(spread - shares).max() < 1e-7
    upper = one(forebay.Image("png", mode="gray"), png=png)
    assert (upper[0] == values >> 8).all()
    wide = one(
        forebay.Image("png", mode="gray", dtype="uint16"),
        png=encoded(Picture.fromarray(classes(7))),
    )
    assert (wide[0] == classes(7).astype(numpy.uint16) * 257).all()


def test_sixteen_bits_are_resized_without_loss(one):
    torch = pytest.importorskip("torch")
    values = depths(8)
    field = forebay.Image("png", mode="gray", dtype="float32", size=(17, 60))
    found = one(field, png=encoded(Picture.fromarray(values)))
    expected = torch.nn.functional.interpolate(
        torch.from_numpy(values / 65535)[None, None], (17, 60), mode="bilinear", antialias=True
    )
    assert numpy.abs(found[0] - expected[0, 0].numpy()).max() < 1e-5


def crops(make, shard_of, mask, **image):
    """Return image and mask of samples whose mask is the image's red channel."""
    samples = []
    for number in range(12):
        picture = colors(number)
        red = encoded(palette(picture[..., 0]))
        members = {"png": encoded(Picture.fromarray(picture)), "mask.png": red}
        samples.append((f"s{number:02}", members))
    fields = {"image": forebay.Image("png", interpolation="nearest", **image), "mask": mask}
    return list(make(shard_of(samples), fields=fields, seed=3))


@pytest.mark.parametrize(
    "image",
    [
        {"size": 16, "crop": "random", "flip": True},
        {"size": 16, "crop": "center"},
        {"size": (20, 12), "crop": "random", "scale": (0.3, 0.5), "views": 2},
        {"size": 16, "flip": True},
    ],
)
def test_fields_that_crop_together_have_one_draw(make, shard_of, image):
    mask = forebay.Image("mask.png", mode="palette", crop_with="image")
    for batch in crops(make, shard_of, mask, **image):
        channels = batch["image"][..., :1, :, :]
        assert batch["mask"].shape == channels.shape
        assert (batch["mask"] == channels).all()
    given = forebay.Image("mask.png", mode="palette", crop_with="image", **image)
    for batch in crops(make, shard_of, given, **image):
        assert (batch["mask"] == batch["image"][..., :1, :, :]).all()


@pytest.mark.parametrize(
    "fields",
    [
        lambda: {"mask": forebay.Image("png", crop_with="image")},
        lambda: {"mask": forebay.Image("png", crop_with="mask")},
        lambda: {
            "image": forebay.Image("png", size=8, crop="random"),
            "mask": forebay.Image("png", crop_with="image", crop="center"),
        },
        lambda: {"image": forebay.Int("cls"), "mask": forebay.Image("png", crop_with="image")},
        lambda: {"mask": forebay.Image("png", mode="palette", interpolation="bilinear")},
        lambda: {"mask": forebay.Image("png", mode="palette", dtype="float32")},
        lambda: {"mask": forebay.Image("png", mode="cmyk")},
        lambda: {"mask": forebay.Image("png", dtype="uint16", mean=(0, 0, 0), std=(1, 1, 1))},
    ],
)
def test_invalid_modes_and_crops_are_rejected(make, fields):
    with pytest.raises(forebay.Invalid):
        list(make(fields=fields()))


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax"])
def test_complex_arrays_are_tensors(make, shard_of, framework):
    values = numpy.arange(6).reshape(2, 3) * (1 - 2j)

    def saved(array):
        file = io.BytesIO()
        numpy.save(file, array)
        return file.getvalue()

    arrays = [values.astype("<c8"), values.astype(">c8"), numpy.asfortranarray(values, "<c8")]
    samples = [(f"s{n}", {"npy": saved(array)}) for n, array in enumerate(arrays)]
    fields = {"it": forebay.Npy("npy")}
    (batch,) = make(shard_of(samples), fields=fields, framework=framework)
    assert str(batch["it"].dtype).endswith("complex64")
    assert (numpy.asarray(batch["it"]) == values).all()
    raw = {"it": forebay.Npy("bin", dtype="complex128", shape=(2, 3))}
    url = shard_of([("s", {"bin": values.astype("<c16").tobytes()})])
    (batch,) = make(url, fields=raw, framework="torch" if framework == "torch" else "numpy")
    assert (numpy.asarray(batch["it"]) == values).all()
    padded = {"it": forebay.Npy("npy", ragged="pad", pad_value=1)}
    short = [("a", {"npy": saved(values[:1])}), ("b", {"npy": saved(values)})]
    (batch,) = make(shard_of(short), fields=padded)
    assert batch["it"].shape == (2, 2, 3)
    assert (batch["it"][0, 1] == 1).all()
