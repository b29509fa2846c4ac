"""Recipes of `docs/COOKBOOK.md`: each script runs as its page says, against S3 on loopback."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from urllib.request import Request, urlopen

import own_command
import pytest
from PIL import Image

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "examples/cookbook"
PAGE = ROOT / "docs/COOKBOOK.md"
sys.path[:0] = [str(ROOT / "examples"), str(ROOT / "cli/bench/contest")]

import daemons  # noqa: E402
import stage  # noqa: E402

TIMEOUT_S = 120
RANKS, PHOTOS = 8, 70
# Files of 64 KiB, eight in a shard.
BLOBS, BLOB_BYTES = 640, 64 << 10
# Tokens of documents.
DOCUMENTS = [1 + number * number % 3001 for number in range(400)]
MOTO = ROOT / ".tools/moto/bin/moto_server"


@pytest.fixture(scope="module")
def forebay(tmp_path_factory):
    return own_command.write(tmp_path_factory.mktemp("bin"))


@pytest.fixture(scope="module")
def place(tmp_path_factory, forebay):
    """Shards of all recipes in one bucket, and the manifests beside it."""
    folder = tmp_path_factory.mktemp("cookbook")
    for number in range(PHOTOS):
        stem = folder / f"loose/{number:03}"
        stem.parent.mkdir(exist_ok=True)
        Image.new("RGB", (48, 40), (number * 3, 90, 200)).save(stem.with_suffix(".jpg"))
        stem.with_suffix(".cls").write_text(str(number % 10))
        stem.with_suffix(".txt").write_text(f"a photo of number {number}")
        # Every second is small, and every fifth of the others does not fit its text.
        about = {"width": 128 + number % 2 * 256, "similarity": number % 5 / 4}
        stem.with_suffix(".json").write_text(json.dumps(about))
    (folder / "loose/007.jpg").write_bytes(b"a download that broke off")
    (folder / "blobs").mkdir()
    for number in range(BLOBS):
        (folder / f"blobs/{number:04}.bin").write_bytes(bytes([number % 256]) * BLOB_BYTES)
    (folder / "documents").mkdir()
    for number, length in enumerate(DOCUMENTS):
        (folder / f"documents/{number:03}.bin").write_bytes(bytes([number % 256, 1]) * length)
    for source, name, samples in (
        ("documents", "text", 50),
        ("loose", "train", 10),
        ("loose", "web", 10),
        ("loose", "clean", 35),
        ("blobs", "half", 8),
    ):
        pattern = folder / f"bucket/{name}-{{:03d}}.tar"
        pack = [forebay, "pack", folder / source, "-o", pattern, "--samples", str(samples)]
        subprocess.run(
            [*pack, "--manifest", folder / f"{name}.json", "--members"],
            check=True,
            stdout=subprocess.PIPE,
        )
    return folder


@pytest.fixture(scope="module")
def store(place):
    """Variables of an S3 server for the bucket."""
    with stage.s3_server(place) as variables:
        yield os.environ | variables


@pytest.fixture(scope="module")
def environment(store, place, forebay):
    """Variables of a job with a daemon of its own, which ends with the tests."""
    variables = store | {"FOREBAY_CAPACITY": "256MiB"}
    with daemons.private_daemon(variables, place / "cache", forebay):
        yield variables


def start(name, arguments, variables):
    words = [sys.executable, SCRIPTS / f"{name}.py", *map(str, arguments)]
    return subprocess.Popen(words, env=variables, stdout=subprocess.PIPE, text=True)


def run(name, arguments, variables):
    """Run a recipe; return the lines that it printed."""
    with start(name, arguments, variables) as process:
        output, _ = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, output
    return output.splitlines()


def urls(name, place):
    last = len(list(place.glob(f"bucket/{name}-*.tar"))) - 1
    return f"s3://bucket/{name}-{{000..{last:03}}}.tar"


def test_eight_ranks_step_equally_and_share_the_samples(place, environment):
    arguments = [urls("train", place), place / "train.json"]
    ranks = [
        start("imagenet", arguments, environment | {"RANK": str(rank), "WORLD_SIZE": str(RANKS)})
        for rank in range(RANKS)
    ]
    told = [rank.communicate(timeout=TIMEOUT_S)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * RANKS
    counts = [re.fullmatch(r"(\d+) steps, (\d+) samples\n", one).groups() for one in told]
    assert len({steps for steps, _ in counts}) == 1
    # Twice all but the broken photo.
    assert sum(int(samples) for _, samples in counts) == 2 * (PHOTOS - 1)


def test_pairs_are_filtered_while_they_are_read(place, environment):
    chosen = [n for n in range(PHOTOS) if n % 2 and n % 5 / 4 > 0.3 and n != 7]
    told = f"{len(chosen)} pairs, {PHOTOS - 1 - len(chosen)} filtered, 1 broken"
    assert run("image_text", [urls("train", place)], environment) == [told]


def test_packed_documents_fill_the_ranks_equally(place, environment):
    arguments = [urls("text", place), place / "text.json"]
    ranks = [
        start("packed_text", arguments, environment | {"RANK": str(rank), "WORLD_SIZE": "3"})
        for rank in range(3)
    ]
    told = [rank.communicate(timeout=TIMEOUT_S)[0] for rank in ranks]
    found = [re.fullmatch(r"(\d+) steps, (\d+) tokens\n", one).groups() for one in told]
    (steps,) = {int(steps) for steps, _ in found}
    # Three documents are as long as a budget, so bins are not quite full.
    fewest = -(-sum(DOCUMENTS) // (3 * 4096))
    assert fewest <= steps <= 1.05 * fewest
    assert sum(int(tokens) for _, tokens in found) == sum(DOCUMENTS)


def test_mixture_has_the_shares_of_its_weights(place, environment):
    told = run("mixture", [urls("web", place), urls("clean", place)], environment)
    assert told == ["web 70, clean 30"]


def test_preempted_run_goes_on_with_the_next_sample(place, environment, tmp_path):
    arguments = [urls("train", place), tmp_path / "state.json"]
    first = start("preemption", arguments, environment)
    assert first.stdout.readline() == "ready\n"
    first.send_signal(signal.SIGTERM)
    before = first.communicate(timeout=TIMEOUT_S)[0].splitlines()
    assert first.returncode == 0
    assert before[-1] == "preempted"
    after = run("preemption", arguments, environment)
    assert after[-1] == "finished"
    keys = [key for line in (*before, *after) for key in line.split()[1:]]
    assert sorted(keys) == [f"{number:03}" for number in range(PHOTOS)]


def test_half_a_cache_saves_traffic(place, store, forebay, tmp_path):
    variables = store | {"FOREBAY_CAPACITY": f"{BLOBS * BLOB_BYTES // 2}"}
    with daemons.private_daemon(variables, tmp_path / "cache", forebay):
        told = run("half_cache", [urls("half", place), place / "half.json"], variables)
        taken = daemons.status(variables, forebay)["cache"]["origin_bytes"]
    assert told == [f"{4 * BLOBS} samples in 4 epochs"]
    # Without a cache it would be four times the data set; by last use, too. On a busy machine
    # shards in flight take much of so small a cache.
    assert taken < 3.8 * BLOBS * BLOB_BYTES


def test_team_shares_a_node_daemon(place, store, forebay, tmp_path):
    text = (SCRIPTS / "team.toml").read_text()
    group = json.dumps(os.getgid())
    for old, new in (
        ('socket = "/run/forebay/forebayd.sock"\n', ""),
        ("/mnt/nvme0/forebay", str(tmp_path / "cache")),
        ('capacity = "3TiB"', 'capacity = "256MiB"'),
        # Others may have filled the disk of the tests.
        ('keep_free = "5%"', 'keep_free = "16MiB"'),
        ('memory = "64GiB"', f'memory = "512MiB"\nstate = "{tmp_path}/state"'),
        ('min = "150GiB"', 'min = "16MiB"'),
        ('max = "2TiB"', 'max = "200MiB"'),
        ('"vision"]', f"{group}]"),
        ('admin_group = "forebay-admin"\n', ""),
        ("s3://ml-data/imagenet/**", "s3://bucket/train-*"),
        ("s3://ml-data/**", "s3://bucket/**"),
        ('"s3://ml-data/"', '"s3://bucket/"'),
        ('region = "eu-west-1"', f'endpoint = "{store["AWS_ENDPOINT_URL"]}"'),
    ):
        assert old in text, old
        text = text.replace(old, new)
    (tmp_path / "cache").mkdir()
    (tmp_path / "state").mkdir()
    # The store is the administrator's choice here.
    variables = {name: value for name, value in store.items() if name != "AWS_ENDPOINT_URL"}
    with daemons.node_daemon(variables, text, forebay=forebay):
        arguments = [urls("train", place), place / "train.json"]
        for _ in range(2):
            (told,) = run("imagenet", arguments, variables)
            assert told.endswith(f" {2 * (PHOTOS - 1)} samples")
        cache = daemons.status(variables, forebay)["cache"]
    sizes = {one["name"]: one["shards"] for one in cache["datasets"]}
    assert sizes["imagenet"] == len(list(place.glob("bucket/train-*.tar")))
    # The second job took nothing from the store.
    assert cache["misses"] == sizes["imagenet"]


def free_port():
    with closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def moto(place):
    """An S3 server with STS, from moto."""
    if not MOTO.exists():
        pytest.skip("needs moto: `make setup-tests` installs it")
    port = free_port()
    words = [MOTO, "-H", "127.0.0.1", "-p", str(port)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as server:
        try:
            assert any("Running on" in line for line in server.stderr)
            yield f"http://127.0.0.1:{port}"
        finally:
            server.terminate()


def test_role_is_assumed_by_the_profile(place, moto, forebay, tmp_path):
    key = "AWS4-HMAC-SHA256 Credential=maker/20260101/us-east-1/s3/aws4_request"
    headers = {"Authorization": key, "Content-Type": "application/octet-stream"}
    shards = {one.name: one.read_bytes() for one in place.glob("bucket/train-*.tar")}
    for name, data in {"": None, **shards}.items():
        asked = Request(f"{moto}/bucket/{name}", data, headers, method="PUT")
        urlopen(asked).close()
    variables = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    variables |= {
        "AWS_PROFILE": "trainer",
        "AWS_CONFIG_FILE": str(SCRIPTS / "roles.config"),
        "AWS_ENDPOINT_URL": moto,
        "AWS_ENDPOINT_URL_STS": moto,
        "FOREBAY_CAPACITY": "256MiB",
    }
    with daemons.private_daemon(variables, tmp_path / "cache", forebay):
        assert run("roles", [urls("train", place)], variables) == [f"{PHOTOS} samples"]
    with urlopen(f"{moto}/moto-api/data.json") as answer:
        assumed = json.load(answer)["sts"]["AssumedRole"]
    assert [one["arn"].split("/")[1] for one in assumed] == ["trainer"]


def test_page_shows_code_of_the_recipes():
    texts = [path.read_text() for path in SCRIPTS.glob("*.*")]
    found = re.findall(r"^```(?:python|toml|ini)\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    assert len(found) >= 6
    for block in found:
        assert any(block in text for text in texts), block
    # Every recipe is on the page.
    for path in SCRIPTS.glob("*.py"):
        assert f"examples/cookbook/{path.name}" in PAGE.read_text()
