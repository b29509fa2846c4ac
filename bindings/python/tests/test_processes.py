"""Processes: imports, forks, signals, killed daemons, and trainers that start one daemon."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import threading
import warnings
from concurrent.futures import Future
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import forebay
from conftest import processes_in, wait_gone
from forebay._epoch import Pending

FIELDS = {"label": forebay.Int("cls")}


def keys(batches):
    return [key for batch in batches for key in batch["__key__"]]


ALL = [f"s{number:05}" for number in range(60)]


def test_importing_loads_no_framework():
    code = (
        "import sys, forebay\n"
        "heavy = {'torch', 'numpy', 'jax', 'ml_dtypes'} & set(sys.modules)\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_framework_is_imported_when_an_iteration_begins(shards):
    code = (
        "import sys, forebay\n"
        "with forebay.DataLoader(sys.argv[1], batch_size=4, framework='torch') as loader:\n"
        "    assert 'torch' not in sys.modules\n"
        "    batches = iter(loader)\n"
        "    assert 'torch' in sys.modules and 'jax' not in sys.modules\n"
        "    assert len(list(batches)) == 3\n"
        "sys.modules['jax'] = None\n"
        "loader = forebay.DataLoader(sys.argv[1], batch_size=4, framework='jax')\n"
        "try:\n"
        "    iter(loader)\n"
        "except forebay.Invalid as error:\n"
        "    assert 'install' in str(error), error\n"
        "else:\n"
        "    raise AssertionError\n"
    )
    subprocess.run([sys.executable, "-c", code, shards[0]], check=True)


def test_cuda_is_untouched_before_an_iteration_begins(shards):
    code = (
        "import sys, torch\n"
        "asked = []\n"
        "for name in ('is_available', 'init', '_lazy_init', 'device_count', 'current_device'):\n"
        "    real = getattr(torch.cuda, name)\n"
        "    def note(*arguments, name=name, real=real):\n"
        "        asked.append(name)\n"
        "        return real(*arguments)\n"
        "    setattr(torch.cuda, name, note)\n"
        "import forebay\n"
        "loader = forebay.DataLoader(\n"
        "    sys.argv[1], batch_size=4, framework='torch', pin_memory=True, timeout=60.0)\n"
        "loader.set_epoch(1)\n"
        "loader.load_state_dict(loader.state_dict())\n"
        "assert not asked and not torch.cuda.is_initialized(), asked\n"
        "assert len(list(loader)) == 3\n"
        "assert 'is_available' in asked\n"
    )
    subprocess.run([sys.executable, "-c", code, shards[0]], check=True)


def in_a_fork(body):
    """Run `body` in a forked child; an exception is printed and fails the test."""
    with warnings.catch_warnings():
        # Python and JAX warn of forks beside threads, which this test is about.
        warnings.filterwarnings("ignore", ".*multi-?threaded")
        child = os.fork()
    if child == 0:
        code = 1
        try:
            body()
            code = 0
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_forked_child_iterates_independently_of_its_parent(make, workers):
    loader = make(fields=FIELDS, workers=workers, transform=lambda batch: batch)
    iteration = iter(loader)
    seen = keys([next(iteration), next(iteration)])

    def child():
        assert keys(iteration) == ALL[8:]
        assert keys(loader) == ALL
        loader.close()

    in_a_fork(child)
    in_a_fork(loader.close)
    assert seen + keys(iteration) == ALL
    assert loader.stats()["reconnects"] == 0


def test_fork_is_detected_without_a_process_id(make, monkeypatch):
    loader = make(fields=FIELDS)
    iteration = iter(loader)
    seen = keys([next(iteration)])
    here = forebay._native.forks()
    # A child may get the process id of its parent once that has ended.
    monkeypatch.setattr(os, "getpid", lambda: 4711)

    def child():
        assert forebay._native.forks() == here + 1
        assert keys(iteration) == ALL[4:]
        loader.close()

    in_a_fork(child)
    assert forebay._native.forks() == here
    assert seen + keys(iteration) == ALL


def test_forked_child_continues_past_a_locked_future(make):
    loader = make(fields=FIELDS, workers=2, transform=lambda batch: batch)
    iteration = iter(loader)
    seen = keys([next(iteration)])
    future = Future()
    iteration._pending.append(Pending(future.result, task=future))
    held, done = threading.Event(), threading.Event()

    def hold():
        with future._condition:
            held.set()
            done.wait()

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait()

    def child():
        # The alarm ends a deadlock, the defect that this test looks for.
        signal.alarm(60)
        assert keys(iteration) == ALL[4:]
        loader.close()

    try:
        in_a_fork(child)
    finally:
        done.set()
        holder.join()
    assert iteration._pending.pop().task is future
    assert seen + keys(iteration) == ALL


SLOW = """
import os, signal, sys, forebay
# Handle SIGINT as in a terminal: a shell's background jobs ignore it.
signal.signal(signal.SIGINT, signal.default_int_handler)
loader = forebay.DataLoader(sys.argv[1], batch_size=4, framework="numpy", timeout=60.0)
print("ready", flush=True)
try:
    list(loader)
except KeyboardInterrupt:
    print("interrupted", loader.state_dict()["samples"], flush=True)
    sys.exit(5)
"""


def test_ctrl_c_ends_a_wait_at_once_and_spares_the_daemon(home, tmp_path):
    # The server accepts a connection and never answers, so the trainer waits for ever.
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/a.tar"
        trainer = subprocess.Popen(
            [sys.executable, "-c", SLOW, url], stdout=subprocess.PIPE, text=True
        )
        assert trainer.stdout.readline() == "ready\n"
        with silent.accept()[0]:
            (daemon,) = home.daemons()
            trainer.send_signal(signal.SIGINT)
            # The limit is far below the loader's own, so only the signal can end the wait.
            assert trainer.communicate(timeout=20)[0] == "interrupted 0\n"
        assert trainer.returncode == 5
        assert home.daemons() == [daemon]


class Ranges(BaseHTTPRequestHandler):
    """A server of one object by ranges, in a thread of the trainer's own process."""

    protocol_version = "HTTP/1.1"

    def do_HEAD(self):
        self.answer(200, self.server.body, with_body=False)

    def do_GET(self):
        first, _, last = self.headers["Range"].removeprefix("bytes=").partition("-")
        # A range may end behind the object; the answer names the bytes that it holds.
        last = min(int(last), len(self.server.body) - 1)
        part = self.server.body[int(first) : last + 1]
        span = f"bytes {first}-{last}/{len(self.server.body)}"
        self.answer(206, part, ("Content-Range", span))

    def answer(self, status, body, *headers, with_body=True):
        self.send_response(status)
        for name, value in (("ETag", '"1"'), ("Content-Length", str(len(body))), *headers):
            self.send_header(name, value)
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, *_):
        pass


def test_other_threads_run_while_a_loader_opens_and_waits(home, shards, make):
    """A thread of this process serves the bytes, so a wait that held the GIL would never end."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Ranges) as server:
        server.body = Path(shards[0]).read_bytes()
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}/a.tar"
            loader = make(url, fields=FIELDS, timeout=20.0)
            assert keys(loader) == ALL[:10]
        finally:
            server.shutdown()
            thread.join()


def test_killed_daemon_is_replaced_without_sample_loss(home, make, caplog):
    loader = make(fields=FIELDS, shuffle=True, prefetch=2, batch_size=2, seed=9)
    expected = keys(loader)
    loader.set_epoch(0)
    seen = []
    killed = set()
    for number, batch in enumerate(loader):
        seen += list(batch["__key__"])
        if number in (3, 14):
            pid = loader.stats()["daemon_pid"]
            os.kill(pid, signal.SIGKILL)
            assert wait_gone(pid)
            killed.add(pid)
    assert seen == expected
    assert loader.stats()["reconnects"] == 2
    assert len(killed) == 2
    assert loader.stats()["daemon_pid"] not in killed
    assert len(home.daemons()) == 1
    # Threads of Rust warn of each; a call from Python tells it.
    told = [(record.name, record.levelno) for record in caplog.records]
    assert told == [("forebay", logging.WARNING)] * 2


ONE_OF_MANY = """
import sys, forebay
sys.stdin.read()
with forebay.DataLoader(sys.argv[1], batch_size=4, framework="numpy", timeout=60.0) as loader:
    count = sum(len(batch["__key__"]) for batch in loader)
    print(count, loader.stats()["daemon_pid"], flush=True)
"""


def test_eight_processes_at_once_start_one_daemon(home, shards):
    command = [sys.executable, "-c", ONE_OF_MANY, "::".join(shards)]
    pipe = subprocess.PIPE
    trainers = [subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) for _ in range(8)]
    for trainer in trainers:
        trainer.stdin.close()
    answers = {trainer.stdout.read().strip() for trainer in trainers}
    for trainer in trainers:
        trainer.stdout.close()
        assert trainer.wait() == 0
    (daemon,) = home.daemons()
    assert answers == {f"60 {daemon}"}


def test_embedded_daemon_inherits_nothing(home, make, tmp_path):
    with open(tmp_path / "inherited", "w") as file:
        os.set_inheritable(file.fileno(), True)
        loader = make(fields=FIELDS)
        list(loader)
    pid = loader.stats()["daemon_pid"]
    opened = []
    for fd in os.listdir(f"/proc/{pid}/fd"):
        # Shards are still being stored: their files are closed meanwhile.
        with contextlib.suppress(FileNotFoundError):
            opened.append(os.readlink(f"/proc/{pid}/fd/{fd}"))
    assert not [name for name in opened if name.endswith("inherited")]
    assert os.getsid(pid) != os.getsid(0)
    assert os.readlink(f"/proc/{pid}/cwd") == "/"
    for directory in (home.cache, home.cache / "daemon"):
        assert directory.stat().st_mode & 0o777 == 0o700


def test_idle_daemon_ends(home, make, monkeypatch):
    monkeypatch.setenv("FOREBAY_IDLE", "1")
    loader = make(fields=FIELDS)
    list(loader)
    pid = loader.stats()["daemon_pid"]
    assert list(processes_in(home.runtime)) == [pid]
    loader.close()
    assert wait_gone(pid)
    # A later loader starts another daemon.
    assert keys(make(fields=FIELDS)) == ALL


def test_missing_daemon_is_reported_with_its_path(make, tmp_path):
    with pytest.raises(forebay.ForebayError, match=r"nobody\.sock") as caught:
        iter(make(daemon=f"unix:{tmp_path}/nobody.sock"))
    assert caught.value.kind in ("NotFound", "Unavailable")


def test_console_script_runs_the_command_line(home, make):
    code = "from forebay._cli import main; main()"

    def run(*arguments):
        command = [sys.executable, "-c", code, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    version = run("--version")
    assert version.stdout.strip() == f"forebay {forebay.__version__}"
    assert run("nonsense").returncode == 2
    assert run("status").returncode == 3
    list(make(fields=FIELDS))
    assert run("status").returncode == 0
