"""Object stores and pipe commands, read by the package alone, without any cloud SDK."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

import forebay
from conftest import sample, write_shard
from forebay import DataLoader, Invalid, NotFound, Unavailable


class Store(ThreadingHTTPServer):
    """A bucket of files with the part of S3 that reading and listing need."""

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.folder = folder
        self.signed_by: set[str] = set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Answer(BaseHTTPRequestHandler):
    server: Store
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        signature = self.headers.get("Authorization", "")
        self.server.signed_by.add(signature.partition("Credential=")[2].partition("/")[0])
        parts = urlsplit(self.path)
        if "list-type" in parse_qs(parts.query):
            self._send(200, self._listed(parse_qs(parts.query)["prefix"][0]), body=body)
            return
        file = self.server.folder / Path(parts.path).name
        if not file.exists():
            self._send(404, b"", body=body)
            return
        data = file.read_bytes()
        wanted = self.headers.get("Range", "")
        if not wanted:
            self._send(200, data, body=body)
            return
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        end = min(int(last) + 1, len(data)) if last else len(data)
        span = f"bytes {first}-{end - 1}/{len(data)}"
        self._send(206, data[int(first) : end], body=body, span=span)

    def _listed(self, prefix: str) -> bytes:
        names = sorted(file.name for file in self.server.folder.iterdir())
        keys = [f"d/{name}" for name in names if f"d/{name}".startswith(prefix)]
        rows = "".join(
            f"<Contents><Key>{key}</Key><LastModified>2020-01-01T00:00:00.000Z</LastModified>"
            f'<ETag>"e"</ETag><Size>1</Size></Contents>'
            for key in keys
        )
        return f"<ListBucketResult>{rows}</ListBucketResult>".encode()

    def _send(self, status: int, data: bytes, *, body: bool, span: str | None = None) -> None:
        self.send_response(status)
        self.send_header("ETag", '"e"')
        self.send_header("Last-Modified", "Wed, 21 Oct 2015 07:28:00 GMT")
        self.send_header("Content-Length", str(len(data)))
        if span is not None:
            self.send_header("Content-Range", span)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Log nothing."""


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store with three shards of one sample; the user's keys are in a profile."""
    folder = tmp_path / "d"
    folder.mkdir()
    for number in range(3):
        write_shard(folder / f"{number}.tar", [sample(number)])
    (folder / "notes.txt").write_text("no shard")
    keys = tmp_path / "credentials"
    keys.write_text("[train]\naws_access_key_id = PROFILES\naws_secret_access_key = SK\n")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    with Store(folder) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("AWS_ENDPOINT_URL", server.url)
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(keys))
        monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")
        monkeypatch.setenv("AWS_PROFILE", "train")
        yield server
        server.shutdown()


def test_patterns_expand_in_order_and_a_profile_signs(store: Store) -> None:
    urls = "s3://bucket/d/2.tar::s3://bucket/d/[01].tar"
    with DataLoader(urls, batch_size=1) as loader:
        read = [url for batch in loader for url in batch["__url__"]]
    assert read == [f"s3://bucket/d/{number}.tar" for number in (2, 0, 1)]
    with DataLoader("s3://bucket/d/", batch_size=3) as loader:
        (batch,) = loader
        assert len(batch["__key__"]) == 3
    assert store.signed_by == {"PROFILES"}


def test_keys_left_out_of_a_pattern_are_warned_of(store: Store) -> None:
    (store.folder / "odd\tkey.tar").write_bytes(b"x")
    for named in (forebay.DataLoader, forebay.IndexedDataset, forebay.WebDataset):
        with pytest.warns(UserWarning, match=r"odd\\tkey\.tar") as told:
            named("s3://bucket/d/*.tar")
        assert [warning.filename for warning in told] == [__file__]


def test_pattern_without_matches_is_named_in_the_error(store: Store) -> None:
    with pytest.raises(NotFound, match=r"none-\*\.tar"):
        DataLoader("s3://bucket/d/none-*.tar", batch_size=1)
    with pytest.raises(Invalid, match="braces"):
        DataLoader(f"{store.url}/d/*.tar", batch_size=1)


def test_pipe_urls_require_allow_pipe(tmp_path: Path) -> None:
    for shard in range(2):
        write_shard(tmp_path / f"{shard}.tar", [sample(shard * 10 + i) for i in range(10)])
    urls = f"pipe:cat {tmp_path}/{{0..1}}.tar"
    with pytest.raises(Invalid, match="allow_pipe=True"):
        DataLoader(urls)
    with DataLoader(urls, batch_size=8, allow_pipe=True, framework="numpy") as loader:
        for _ in range(2):
            keys = [key for batch in loader for key in batch["__key__"]]
            assert keys == [f"s{i:05}" for i in range(20)]
        assert set(next(iter(loader))["__url__"]) == {f"pipe:cat {tmp_path}/0.tar"}


def test_failed_pipe_command_is_reported_with_exit_status() -> None:
    with (
        DataLoader("pipe:exit 7", allow_pipe=True, framework="numpy", timeout=60) as loader,
        pytest.raises(Unavailable, match="exit status: 7"),
    ):
        next(iter(loader))
