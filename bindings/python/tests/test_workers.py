"""User code in worker processes: batches, exceptions, and workers that end."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path
from types import SimpleNamespace

import numpy
import pytest

import forebay
from conftest import wait_gone
from forebay import _workers

# Seconds for a thread that is told at once, on a busy machine.
PATIENCE = 30
PROCESSES = {"workers": 2, "worker_type": "process"}
FIELDS = {
    "image": forebay.Image("png"),
    "label": forebay.Int("cls"),
    "score": forebay.Float("score"),
    "text": forebay.Text("txt"),
    "part": forebay.Json("json", path="in"),
    "array": forebay.Npy("npy"),
    "raw": forebay.Bytes("bin"),
    "view": forebay.Bytes("bin", copy=False),
    "lack": forebay.Int("nope", optional=True),
}


def double(value):
    return value * 2


def marked(batch):
    """Mark a batch with the process id and the types of its values."""
    batch["pid"] = os.getpid()
    batch["kinds"] = {name: type(values).__name__ for name, values in batch.items()}
    # The received arrays are writable.
    batch["label"] += 1
    return batch


def plain(batch):
    """Return a batch as plain values, which can be compared."""
    return {
        name: values.tolist()
        if hasattr(values, "tolist")
        else [bytes(v) if name == "view" else v for v in values]
        for name, values in batch.items()
        if name not in ("pid", "kinds")
    }


def raising(batch):
    if batch["label"][0] == 8:
        raise LookupError("eight", {"more": 1})
    return batch


def raising_before_late(batch):
    if batch["label"][0] == 8:
        raise LookupError("eight")
    return late_at_twelve(batch)


def late_at_twelve(batch):
    if batch["label"][0] == 12:
        time.sleep(0.1)
    return batch


class Picky(Exception):
    """An exception that pickle cannot restore."""

    def __init__(self, one, two):
        super().__init__(f"{one} and {two}")


def raising_picky(batch):
    raise Picky("this", "that")


def killing(batch):
    if batch["label"][0] == 8 and not os.path.exists(os.environ["FOREBAY_TEST_DONE"]):
        Path(os.environ["FOREBAY_TEST_DONE"]).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return batch


def leaving(batch):
    sys.exit(7)


def silent(batch):
    # Closes its connection without an end of the process.
    for file in map(int, os.listdir("/proc/self/fd")):
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.fstat(file).st_mode):
                os.close(file)
    signal.pause()


def unsendable(batch):
    return lambda: batch


def late(batch):
    if batch["label"][0] % 8 == 0:
        time.sleep(0.05)
    return batch


def workers_of(loader):
    return [worker.process for worker in loader._workers._workers]


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_process_workers_give_the_batches_of_thread_workers(make, framework):
    maps = FIELDS | {"doubled": forebay.Int("cls", map=double)}
    options = {"fields": maps, "transform": marked, "framework": framework, "batch_size": 7}
    expected = list(make(workers=2, **options))
    loader = make(**PROCESSES, **options)
    found = list(loader)
    assert [plain(batch) for batch in found] == [plain(batch) for batch in expected]
    for batch, other in zip(found, expected, strict=True):
        for name, values in other.items():
            if hasattr(values, "dtype"):
                assert batch[name].dtype == values.dtype
                assert type(batch[name]) is type(values)
        kinds = {name: kind for name, kind in other["kinds"].items() if not name.startswith("__")}
        assert {name: batch["kinds"][name] for name in kinds} == kinds
    pids = {batch["pid"] for batch in found}
    assert os.getpid() not in pids
    assert pids == {process.pid for process in workers_of(loader)}
    # Batches stay valid and writable without their workers.
    loader.close()
    assert all(wait_gone(pid) for pid in pids)
    found[0]["image"][0] = 0
    assert plain(found[1]) == plain(expected[1])


def test_no_process_is_started_before_the_first_batch(make):
    loader = make(fields=FIELDS, transform=marked, **PROCESSES)
    assert loader._workers is None
    iteration = iter(loader)
    assert not multiprocessing.active_children()
    next(iteration)
    assert 1 <= len(multiprocessing.active_children()) <= 2


def test_order_is_kept_with_batches_of_unequal_duration(make):
    loader = make(
        fields={"label": forebay.Int("cls")}, transform=late, workers=3, worker_type="process"
    )
    assert [value for batch in loader for value in batch["label"].tolist()] == list(range(60))


def test_exception_keeps_type_sample_and_traceback(make, shards):
    loader = make(fields={"label": forebay.Int("cls")}, transform=raising, **PROCESSES)
    iteration = iter(loader)
    seen = [next(iteration)["label"].tolist() for _ in range(2)]
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7]]
    for _ in range(2):
        with pytest.raises(LookupError, match="eight") as caught:
            next(iteration)
        assert caught.value.args[1] == {"more": 1}
        places = caught.value.places
        assert (places["url"], places["key"], places["to_key"]) == (shards[0], "s00008", "s00011")
        assert int(places["offset"]) > 0
        text = "".join(traceback.format_exception(caught.value))
        assert "in raising" in text
        assert Path(__file__).name in text
    # The worker that raised goes on.
    assert len(workers_of(loader)) == 2


def test_failed_batch_is_retried_while_the_next_runs(make):
    fields = {"label": forebay.Int("cls")}
    loader = make(fields=fields, transform=raising_before_late, **PROCESSES)
    iteration = iter(loader)
    seen = [next(iteration)["label"].tolist() for _ in range(2)]
    assert seen == [[0, 1, 2, 3], [4, 5, 6, 7]]
    # The next batch may or may not have begun when this one raised.
    for _ in range(10):
        with pytest.raises(LookupError, match="eight"):
            next(iteration)


def test_iteration_restarts_while_old_batches_run(make):
    loader = make(fields={"label": forebay.Int("cls")}, transform=late_at_twelve, **PROCESSES)
    state = loader.state_dict()
    for _ in range(5):
        loader.load_state_dict(state)
        iteration = iter(loader)
        seen = [value for _ in range(3) for value in next(iteration)["label"].tolist()]
        assert seen == list(range(12))


def test_unpicklable_exception_is_reported_as_text(make, shards):
    loader = make(fields={"label": forebay.Int("cls")}, transform=raising_picky, **PROCESSES)
    with pytest.raises(RuntimeError, match="Picky: this and that") as caught:
        list(loader)
    assert caught.value.places["key"] == "s00000"
    assert "raising_picky" in "".join(traceback.format_exception(caught.value))


def test_killed_worker_is_reported_and_replaced(make, tmp_path, monkeypatch):
    monkeypatch.setenv("FOREBAY_TEST_DONE", str(tmp_path / "done"))
    loader = make(fields={"label": forebay.Int("cls")}, transform=killing, **PROCESSES)
    iteration = iter(loader)
    seen = [value for _ in range(2) for value in next(iteration)["label"].tolist()]
    with pytest.raises(forebay.Closed, match=r"signal 9 \(SIGKILL\)") as caught:
        next(iteration)
    assert caught.value.places["exit_code"] == "-9"
    assert caught.value.places["key"] == "s00008"
    # The position is still before the failed batch.
    seen += [value for batch in iteration for value in batch["label"].tolist()]
    assert seen == list(range(60))


def test_worker_killed_between_batches_is_replaced(make):
    loader = make(fields={"label": forebay.Int("cls")}, transform=late, **PROCESSES)
    iteration = iter(loader)
    seen = next(iteration)["label"].tolist()
    for process in workers_of(loader):
        process.kill()
        process.join()
    failed = 0
    while len(seen) < 60:
        try:
            seen += next(iteration)["label"].tolist()
        except forebay.Closed:
            failed += 1
    assert seen == list(range(60))
    assert failed <= 2


def test_exited_worker_is_reported_with_its_exit_code(make):
    loader = make(fields={"label": forebay.Int("cls")}, transform=leaving, **PROCESSES)
    with pytest.raises(forebay.Closed, match="exit code 7") as caught:
        list(loader)
    assert caught.value.places["exit_code"] == "7"


def test_worker_that_closes_its_connection_is_reported_and_ended(make, monkeypatch):
    monkeypatch.setattr(_workers, "_EXIT", 0.1)
    loader = make(fields={"label": forebay.Int("cls")}, transform=silent, **PROCESSES)
    with pytest.raises(forebay.Closed) as caught:
        list(loader)
    assert "exit_code" not in caught.value.places
    pid = int(caught.value.places["pid"])
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_unpicklable_result_is_an_error_and_workers_survive(make):
    loader = make(fields={"label": forebay.Int("cls")}, transform=unsendable, **PROCESSES)
    with pytest.raises(Exception, match=r"unsendable.*<locals>.<lambda>"):
        list(loader)
    assert all(process.is_alive() for process in workers_of(loader))


def test_unsendable_batch_is_an_error_and_is_retried(make):
    loader = make(fields={"label": forebay.Int("cls")}, transform=late, **PROCESSES)
    iteration = iter(loader)
    seen = [value for _ in range(2) for value in next(iteration)["label"].tolist()]
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Without file descriptors no memory can be shared; two of each worker can still be polled.
    resource.setrlimit(resource.RLIMIT_NOFILE, (2 * PROCESSES["workers"], hard))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            take_all(iteration, seen)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    take_all(iteration, seen)
    assert seen == list(range(60))


def take_all(iteration, into):
    for batch in iteration:
        into += batch["label"].tolist()


def test_new_iteration_gets_no_old_batches(make):
    loader = make(fields={"label": forebay.Int("cls")}, transform=late, **PROCESSES)
    for _ in range(3):
        iteration = iter(loader)
        assert next(iteration)["label"].tolist() == [0, 1, 2, 3]
        loader.set_epoch(0)
    assert [value for batch in loader for value in batch["label"].tolist()] == list(range(60))


def test_forked_child_starts_its_own_workers(make):
    from test_processes import in_a_fork

    loader = make(fields={"label": forebay.Int("cls")}, transform=marked, **PROCESSES)
    iteration = iter(loader)
    pids = {next(iteration)["pid"]}

    def child():
        signal.alarm(60)
        batches = list(iteration)
        assert [batch["label"][0] for batch in batches] == list(range(5, 61, 4))
        assert pids.isdisjoint({batch["pid"] for batch in batches})
        loader.close()

    in_a_fork(child)
    assert [batch["label"][0] for batch in iteration] == list(range(5, 61, 4))


TRAINER = """
import os, signal, sys, time
import forebay

def forever(batch):
    # A line is one write, so lines of several workers do not mix.
    os.write(1, f"{os.getpid()}\\n".encode())
    if batch["label"][0] >= 8:
        while True:
            time.sleep(1)
    return batch

if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)
    loader = forebay.DataLoader(
        sys.argv[1], batch_size=4, fields={"label": forebay.Int("cls")}, framework="numpy",
        transform=forever, workers=3, worker_type="process", timeout=60.0)
    list(loader)
"""


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL, signal.SIGTERM])
def test_ended_trainer_leaves_no_worker_behind(shards, tmp_path, how):
    script = tmp_path / "trainer.py"
    script.write_text(TRAINER)
    trainer = subprocess.Popen(
        [sys.executable, str(script), "::".join(shards)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    # Two batches pass; the next three never end, each in another worker.
    pids = {int(trainer.stdout.readline()) for _ in range(5)}
    assert len(pids) == 3
    if how is signal.SIGINT:
        # A terminal signals all processes of the group at once.
        os.killpg(trainer.pid, how)
    else:
        trainer.send_signal(how)
    _, said = trainer.communicate(timeout=30)
    assert trainer.returncode == -how
    assert all(wait_gone(pid) for pid in pids)
    if how is signal.SIGINT:
        assert said.count("KeyboardInterrupt") == 1, said


def test_script_without_a_main_guard_is_rejected(shards, tmp_path):
    script = tmp_path / "bare.py"
    script.write_text(
        "import sys, forebay\n"
        "def same(batch):\n"
        "    return batch\n"
        "options = {'framework': 'numpy', 'workers': 1, 'worker_type': 'process'}\n"
        "loader = forebay.DataLoader(sys.argv[1], transform=same, timeout=60.0, **options)\n"
        "list(loader)\n"
    )
    ran = subprocess.run(
        [sys.executable, str(script), shards[0]], capture_output=True, text=True, timeout=120
    )
    assert ran.returncode == 1
    assert "lacks `if __name__" in ran.stderr


def test_process_workers_inside_a_pool_are_rejected(shards):
    code = (
        "import multiprocessing, sys, forebay\n"
        "from operator import itemgetter\n"
        "def play(url):\n"
        "    loader = forebay.DataLoader(url, batch_size=4, framework='numpy', timeout=60.0,\n"
        "        transform=itemgetter('__key__'), workers=1, worker_type='process')\n"
        "    try:\n"
        "        list(loader)\n"
        "    except forebay.Invalid as error:\n"
        "        return str(error)\n"
        "with multiprocessing.get_context('fork').Pool(1) as pool:\n"
        "    print(pool.apply(play, (sys.argv[1],)))\n"
    )
    command = [sys.executable, "-c", code, shards[0]]
    ran = subprocess.run(command, check=True, capture_output=True, text=True, timeout=120)
    assert "worker_type='thread'" in ran.stdout


def test_tensors_cross_processes_unchanged(make):
    torch = pytest.importorskip("torch")
    from multiprocessing import Pipe

    from forebay import _sharing

    here, there = Pipe()
    sent = {
        "bfloat16": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
        "turned": torch.arange(6.0).reshape(2, 3).T,
        "empty": torch.empty((0, 3), dtype=torch.float16),
        "scalar": torch.tensor(3),
        "flags": torch.tensor([True, False]),
        "grad": torch.ones(2, requires_grad=True),
        "sparse": torch.eye(3).to_sparse(),
        "complex": torch.tensor([1 + 2j]).conj(),
        "fortran": numpy.asfortranarray(numpy.arange(6).reshape(2, 3)),
        "strided": numpy.arange(12)[::3],
        "view": memoryview(b"as it is"),
    }
    _sharing.send(here, sent)
    got = _sharing.receive(there)
    assert bytes(got.pop("view")) == bytes(sent.pop("view"))
    for name, value in sent.items():
        assert type(got[name]) is type(value), name
        assert (got[name].dtype, got[name].shape) == (value.dtype, value.shape), name
        if name == "sparse":
            got[name], value = got[name].to_dense(), value.to_dense()
        assert got[name].tolist() == value.tolist(), name
    got["bfloat16"][0] = 7
    assert sent["bfloat16"][0, 1] == 1
    assert got["grad"].requires_grad


def test_batches_of_ended_workers_are_closed(monkeypatch):
    """Another thread waits for a batch, and no worker will ever take it."""
    stream = SimpleNamespace(framework=SimpleNamespace(stream=lambda: contextlib.nullcontext))
    threads = _workers.Threads(1, stream, None)
    begun, go_on = threading.Event(), threading.Event()

    def decode():
        begun.set()
        go_on.wait()

    threads.submit(decode)
    begun.wait()
    monkeypatch.setattr(_workers.Processes, "_has_idle", lambda _: False)
    processes = _workers.Processes(1, stream, None)
    for workers in (threads, processes):
        task = workers.submit(decode)
        taker = threading.Thread(target=task.wait, args=(None,), daemon=True)
        taker.start()
        workers.end()
        taker.join(PATIENCE)
        assert not taker.is_alive()
        assert task.wait(None)
        with pytest.raises(forebay.Closed):
            task.result()
    go_on.set()
