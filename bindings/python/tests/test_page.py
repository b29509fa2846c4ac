"""The status page in a real browser: it shows the daemon's status, and escapes all names."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import stat
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

import forebay
from conftest import save_picture, write_shard
from test_stores import Store

TOKEN = "0123456789abcdef0123456789abcdef"

# Seconds to wait: the page polls every two, and a busy machine adds to that.
WITHIN = 30

# Seconds between two looks at the page.
EVERY = 0.1

# Jobs whose failed requests together open an endpoint's circuit breaker.
JOBS = 4

# A job's name that runs code if the page takes it for markup.
NAME = "<img src=x onerror=document.title='hit'>"


class Node:
    """A daemon with an HTTP port, its files, and additional lines of configuration."""

    def __init__(self, root: Path, more: str = "") -> None:
        self.root = root
        with closing(socket.socket()) as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        token = root / "token"
        token.write_text(TOKEN)
        token.chmod(stat.S_IRUSR | stat.S_IWUSR)
        (root / "cache").mkdir()
        (root / "forebay.toml").write_text(
            f"""
            [daemon]
            socket = "{root}/d.sock"
            memory = "256MiB"
            http = "127.0.0.1:{self.port}"
            token_file = "{token}"
            [[tier]]
            name = "nvme"
            path = "{root}/cache"
            capacity = "64MiB"
            [[dataset]]
            name = "digits"
            match = "{root}/**"
            quota = {{ max = "32MiB" }}
            {more}
            """
        )
        program = Path(sys.executable).with_name("forebay")
        command = [program, "daemon", "--config", root / "forebay.toml"]
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self.process.stderr is not None
        for line in self.process.stderr:
            if "listening for HTTP" in line:
                break
        self.url = f"http://127.0.0.1:{self.port}/"

    def status(self) -> Any:
        request = urllib.request.Request(self.url + "api/v1/status")
        request.add_header("authorization", f"Bearer {TOKEN}")
        with urllib.request.urlopen(request, timeout=WITHIN) as answer:
            return json.load(answer)

    def end(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=WITHIN)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    node = Node(tmp_path)
    yield node
    node.end()


def until(browser: webdriver.Chrome, message: str, condition: Any) -> None:
    """Wait for a condition; an element that the page redraws meanwhile is looked up again."""
    wait = WebDriverWait(browser, WITHIN, EVERY, [StaleElementReferenceException])
    wait.until(lambda _: condition(), message)


def text(browser: webdriver.Chrome, name: str) -> str:
    return str(browser.find_element(By.ID, name).text)


def log_in(browser: webdriver.Chrome, node: Node) -> None:
    """Open the page, log in with the token, and wait until the page shows everything."""
    browser.get(node.url)
    until(browser, "it is live", lambda: text(browser, "state") == "live")
    browser.find_element(By.TAG_NAME, "summary").send_keys(Keys.ENTER)
    browser.find_element(By.ID, "secret").send_keys(TOKEN, Keys.ENTER)
    until(
        browser, "everything is shown", lambda: browser.find_element(By.ID, "jobs").is_displayed()
    )


def main(browser: webdriver.Chrome) -> Any:
    """Return the main element, without header and footer."""
    return browser.find_element(By.TAG_NAME, "main")


def override_status(browser: webdriver.Chrome, over: dict[str, Any]) -> None:
    """Override parts of the daemon's status from the page's next look on.

    The event makes the page look at once, as it does when its tab becomes visible.
    """
    wrapped = """
        window.daemons ??= window.fetch;
        const over = arguments[0];
        window.fetch = async (path, asked) => {
            const answer = await window.daemons(path, asked);
            if (!path.endsWith("/status")) return answer;
            return Response.json({ ...await answer.json(), ...over });
        };
        document.dispatchEvent(new Event("visibilitychange"));
    """
    browser.execute_script(wrapped, over)


def shown_verdict(browser: webdriver.Chrome) -> tuple[str, bool]:
    """Return the verdict, and True if it is shown as that of a healthy node."""
    verdict = browser.find_element(By.ID, "verdict")
    return str(verdict.text), verdict.get_attribute("class") == ""


def shown_troubles(browser: webdriver.Chrome) -> set[str]:
    """Return the texts that visible tables mark as trouble."""
    return {one.text for one in browser.find_elements(By.CSS_SELECTOR, "td .bad")} - {""}


def use_dark_colours(browser: webdriver.Chrome) -> None:
    """Switch the browser to dark colours."""
    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)


def test_page_shows_names_only_to_an_admin(node: Node, browser: webdriver.Chrome) -> None:
    samples = [(f"{number:04}", {"bin": bytes(50_000)}) for number in range(64)]
    urls = [write_shard(node.root / f"{shard}.tar", samples) for shard in range(4)]
    batch: dict[str, Any] = {"fields": {"x": forebay.Bytes("bin")}, "batch_size": 16}
    daemon = f"unix:{node.root}/d.sock"
    with forebay.DataLoader(urls, **batch, daemon=daemon, job=NAME, framework="numpy") as loader:
        for _ in range(3):
            assert sum(len(one["x"]) for one in loader) == 256
        browser.get(node.url)

        # Without a token the page shows the daemon's state, but no names of jobs or data sets.
        until(browser, "it is live", lambda: text(browser, "state") == "live")
        assert "nvme" in text(browser, "tiers-table")
        seen = browser.find_element(By.TAG_NAME, "body").text
        assert NAME not in seen
        assert "digits" not in seen
        assert not browser.find_element(By.ID, "jobs").is_displayed()

        # A wrong token is rejected with a message. The keyboard alone is enough.
        browser.find_element(By.TAG_NAME, "summary").send_keys(Keys.ENTER)
        for secret in ("wrong", TOKEN):
            browser.find_element(By.ID, "secret").send_keys(secret, Keys.ENTER)
            if secret == "wrong":
                until(
                    browser,
                    "the token is rejected",
                    lambda: "not the token" in text(browser, "refused"),
                )
        until(browser, "names are shown", lambda: NAME in text(browser, "jobs-table"))
        # The focus moves to the main element, because the form is gone.
        assert browser.switch_to.active_element.get_attribute("id") == "main"
        (job,) = node.status()["jobs"]
        shown = text(browser, "jobs-table")
        assert f"{job['progress']['samples']} samples so far" in shown
        assert "digits" in text(browser, "datasets-table")
        assert "of 32.0 MiB" in text(browser, "datasets-table")
        assert browser.title == "Forebay", "a job's name was taken for markup"
        until(browser, "there is a history", lambda: "From tiers" in text(browser, "history"))

        # Dark colours change the background.
        ground = "return getComputedStyle(document.body).backgroundColor"
        light = browser.execute_script(ground)
        use_dark_colours(browser)
        assert browser.execute_script(ground) != light

    until(browser, "the job is gone", lambda: "No job is connected" in text(browser, "jobs-table"))
    # The page loads nothing from elsewhere and violates no content policy.
    loaded = browser.execute_script(
        "return performance.getEntriesByType('resource').map((one) => one.name)"
    )
    assert loaded
    assert all(one.startswith(node.url) for one in loaded), loaded
    severe = [one for one in browser.get_log("browser") if one["level"] == "SEVERE"]
    assert all("401" in one["message"] for one in severe), severe


def test_page_reports_a_stopped_daemon_and_recovers(node: Node, browser: webdriver.Chrome) -> None:
    browser.get(node.url)
    until(browser, "it is live", lambda: text(browser, "state") == "live")
    os.kill(node.process.pid, signal.SIGSTOP)
    until(browser, "the silence is reported", lambda: "does not answer" in text(browser, "state"))
    assert "nvme" in text(browser, "tiers-table"), "the last known state is gone"
    os.kill(node.process.pid, signal.SIGCONT)
    until(browser, "it is live again", lambda: text(browser, "state") == "live")


def test_page_is_usable_by_keyboard_and_screen_reader(
    node: Node, browser: webdriver.Chrome
) -> None:
    """A screen reader finds a language, one first heading, and a name for each control."""
    browser.get(node.url)
    until(browser, "it is live", lambda: text(browser, "state") == "live")
    tree = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    named = {"region", "textbox", "button", "meter", "link", "img", "figure"}
    for one in tree:
        if one.get("role", {}).get("value") in named and not one["ignored"]:
            assert one.get("name", {}).get("value"), one
    assert browser.execute_script("return document.documentElement.lang") == "en"
    assert len(browser.find_elements(By.TAG_NAME, "h1")) == 1
    # The first stop of Tab is a link past the header, also without a token.
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    assert browser.switch_to.active_element.text == "To the content"
    browser.switch_to.active_element.send_keys(Keys.ENTER)
    until(
        browser, "the content is reached", lambda: browser.switch_to.active_element == main(browser)
    )
    assert main(browser).is_displayed()
    # Every region has a unique name once all of them are shown.
    log_in(browser, node)
    override_status(browser, {"gpus": GPUS, "mounts": [MOUNT]})
    until(browser, "GPUs are shown", lambda: "H100" in text(browser, "gpus-table"))
    tree = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    places = [
        one["name"]["value"]
        for one in tree
        if not one["ignored"] and one["role"]["value"] == "region"
    ]
    assert len(places) > 4
    assert len(places) == len(set(places)), places


def test_page_names_an_endpoint_that_does_not_answer(
    tmp_path: Path, browser: webdriver.Chrome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs send requests to a closed port until the circuit breaker opens."""
    with closing(socket.socket()) as closed:
        closed.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
        monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
        node = Node(tmp_path, f"[[source]]\nmatch = 's3://bucket/'\nendpoint = '{endpoint}'\n")

        def ask(number: int) -> None:
            fields = {"x": forebay.Bytes("bin")}
            where: dict[str, Any] = {"daemon": f"unix:{tmp_path}/d.sock", "timeout": 15}
            url = f"s3://bucket/{number}.tar"
            with (
                pytest.raises(forebay.Unavailable),
                forebay.DataLoader(url, fields=fields, framework="numpy", **where) as loader,
            ):
                next(iter(loader))

        try:
            with ThreadPoolExecutor(JOBS) as jobs:
                list(jobs.map(ask, range(JOBS)))
            log_in(browser, node)
            news = f"{endpoint} does not answer."
            until(browser, news, lambda: shown_verdict(browser) == (news, False))
            assert shown_troubles(browser) == {"circuit breaker open"}
        finally:
            node.end()


def test_page_shows_the_missing_shard_of_a_stalled_job(
    tmp_path: Path, browser: webdriver.Chrome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of the data fits and the link is slow; the page shows the next missing shard and when
    it arrives."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")
    store = Store(tmp_path)
    monkeypatch.setenv("AWS_ENDPOINT_URL", store.url)
    threading.Thread(target=store.serve_forever, daemon=True).start()
    samples = [(f"{number:04}", {"bin": os.urandom(50_000)}) for number in range(40)]
    urls = [
        f"s3://d/{Path(write_shard(tmp_path / f'{n:06}.tar', samples)).name}" for n in range(24)
    ]
    more = f"""
        [[source]]
        match = "s3://d/"
        endpoint = "{store.url}"
        bandwidth = "8MB/s"
        [[dataset]]
        name = "photos"
        match = "s3://d/**"
        quota = {{ max = "24MiB" }}
    """
    node = Node(tmp_path, more)
    is_enough = threading.Event()

    def train() -> None:
        batch: dict[str, Any] = {"fields": {"x": forebay.Bytes("bin")}, "batch_size": 16}
        daemon = f"unix:{tmp_path}/d.sock"
        with forebay.DataLoader(
            urls, **batch, shuffle=True, window=4, daemon=daemon, job="resnet50", framework="numpy"
        ) as loader:
            # The job announces its order from the second epoch on.
            while not is_enough.is_set():
                for _ in loader:
                    if is_enough.is_set():
                        break

    trainer = threading.Thread(target=train)
    trainer.start()
    try:
        log_in(browser, node)
        horizon = re.compile(r"needed in .* s, arrives in .* s\ns3://d/\d{6}\.tar")
        until(
            browser,
            "a shard is missing",
            lambda: (
                horizon.search(text(browser, "jobs-table"))
                and "for origin most" in shown_verdict(browser)[0]
            ),
        )
        assert re.search(r"\d %\s+of the time\norigin \d+ %", text(browser, "jobs-table"))
        save_picture(browser, "status-light")
        use_dark_colours(browser)
        save_picture(browser, "status-dark")
    finally:
        is_enough.set()
        trainer.join(WITHIN)
        node.end()
        store.shutdown()
        store.server_close()


# Parts of a daemon's status: a job, a mount, GPUs, a warm-up and foresight.
JOB: dict[str, Any] = {
    "session": 1,
    "name": "resnet",
    "wrong_shards": 0,
    "progress": {
        "samples": 1000,
        "waiting_seconds": 0.0,
        "lately": {
            "seconds": 10.0,
            "samples_per_second": 100.0,
            "bytes_per_second": 1e6,
            "waited_share": 0.34,
            "waited_for": {"origin": 0.306, "tier_read": 0.034, "decode": 0.0},
        },
    },
}
MEMBER: dict[str, Any] = {
    "name": "node1",
    "address": "10.0.0.2:9481",
    "slots": 16,
    "is_self": False,
    "is_down": False,
    "is_silent": False,
    "greeted": {"clock_ahead_seconds": 0, "has_same_rules": True, "is_draining": True},
    "requests": 10,
    "received_bytes": 3 << 20,
    "fallbacks": [],
}

CLUSTER: dict[str, Any] = {
    "node": "node0",
    "group": "default",
    "address": "10.0.0.1:9481",
    "members": [
        MEMBER,
        MEMBER
        | {
            "name": "node2",
            "is_down": True,
            "error": "connection refused",
            "fallbacks": [["silence", 7]],
        },
    ],
    "source": "/etc/forebay/members",
    "is_frozen": False,
    "is_draining": False,
    "is_listed": True,
    "serving": {"requests": 0, "sent_bytes": 0, "busy": 0, "failed": 0, "rejected": 0},
}

MOUNT: dict[str, Any] = {"mount": "/lustre", "hangs": True, "readers": [7, 8], "stuck": [8]}
GPUS: dict[str, Any] = {
    "host": "node7",
    "devices": [
        {
            "index": 0,
            "uuid": "GPU-0",
            "pci_bus_id": "00000000:06:00.0",
            "model": "NVIDIA H100 80GB HBM3",
            "is_monitored": True,
            "over_seconds": 15.0,
            "sm_share": 0.71,
            "jpeg_shares": [0.3, 0.1],
            "pcie_in_bytes_per_second": 1.5e9,
            "pcie_out_bytes_per_second": 2.0e6,
            "memory_bytes": 80 << 30,
            "memory_used_bytes": 20 << 30,
            "jobs": [{"session": 1, "name": "resnet"}],
            "other_processes": 2,
        },
        {
            "index": 1,
            "uuid": "GPU-1",
            "pci_bus_id": "00000000:07:00.0",
            "model": "NVIDIA H100 80GB HBM3",
            "failing": "it fell off the bus",
            "is_monitored": False,
            "jpeg_shares": [],
            "jobs": [],
            "other_processes": 0,
        },
    ],
}
QUIET = "No job is connected."
WARM_UP: dict[str, Any] = {
    "number": 7,
    "shards": 32,
    "fetched": 20,
    "cached": 10,
    "failed": 2,
    "untried": 0,
    "bytes": 1 << 30,
    "failures": [],
    "done": True,
}
FORESEEN: dict[str, Any] = {"bandwidth": 1 << 20, "slack": 3.0, "jobs": [], "lacks": None}


def lacking(**lacks: Any) -> dict[str, Any]:
    """Return the foresight of a job whose first missing shard has these figures."""
    return FORESEEN | {"jobs": [{"job": 1, "lacks": {"url": "s3://bucket/42.tar"} | lacks}]}


def test_page_shows_each_state_of_a_node(node: Node, browser: webdriver.Chrome) -> None:
    """Each state overrides the daemon's status in turn."""
    log_in(browser, node)
    status = node.status()
    (tier,) = status["tiers"]
    calm = JOB | {
        "progress": JOB["progress"] | {"lately": JOB["progress"]["lately"] | {"waited_share": 0.01}}
    }
    ranks = [JOB, calm | {"session": 2}, calm | {"session": 3, "name": "unet"}]
    half = tier["capacity_bytes"] // 2
    sick = tier | {"condition": "read-only", "why": "EROFS", "corruptions": 2}
    waits = "1 of 1 jobs wait; resnet does for 34 % of its time, for origin most."
    lacks = {"lacks": {"cache": 1 << 30, "bandwidth": 1 << 20}}
    late = "needed in 12 s, arrives in 40 s"
    in_time = "needed in 40 s, arrives in 12 s"
    never = "needed in 12 s; its origin does not deliver it"
    of_time = [
        ({"needed_in": 12.0, "arrives_in": 40.0}, late),
        ({"needed_in": 12.0}, never),
        ({"needed_in": 12.0, "refused": "origin"}, never),
    ]
    no_room = (
        "there is no room for it before then: cached shards are needed sooner, or a quota is full"
    )
    by_use: dict[str, Any] = FORESEEN | {"jobs": [{"job": 1, "shards": 0}]}
    # Overrides; the verdict, True if it is good news, the troubles, and words of the page.
    states: list[tuple[dict[str, Any], str, bool, set[str], str]] = [
        ({"jobs": [calm]}, "No job waits for data.", True, set(), "it told no order beforehand"),
        ({"jobs": [calm]}, "No job waits for data.", True, set(), "it is known what it reads next"),
        ({"jobs": [JOB]}, waits, False, set(), "34 % of the time origin 31 %, tier read 3.4 %"),
        (
            {
                "jobs": [
                    {
                        "session": 2,
                        "name": "young",
                        "progress": {"samples": 0, "waiting_seconds": 62},
                    }
                ]
            },
            "1 of 1 jobs wait. young waits now, 62 s so far.",
            False,
            set(),
            "young",
        ),
        (
            {"jobs": [JOB | {"progress": JOB["progress"] | {"waiting_seconds": 62.0}}]},
            f"{waits} resnet waits now, 62 s so far.",
            False,
            {"waits now, 62 s so far"},
            "",
        ),
        *(
            (
                {"jobs": [calm], "foresight": lacking(**when)},
                "No job waits for data.",
                True,
                {words},
                words,
            )
            for when, words in of_time
        ),
        (
            {"jobs": [calm], "foresight": lacking(needed_in=40.0, arrives_in=12.0)},
            "No job waits for data.",
            True,
            set(),
            in_time,
        ),
        (
            {"jobs": [calm], "foresight": lacking(needed_in=40.0, refused="room")},
            "No job waits for data.",
            True,
            set(),
            f"needed in 40 s; {no_room}",
        ),
        (
            {"jobs": [calm], "foresight": by_use},
            "No job waits for data.",
            True,
            set(),
            "nothing of it is kept by foresight",
        ),
        ({"tiers": [sick | {"mode": "disabled"}]}, QUIET, True, {"read-only"}, "disabled"),
        (
            {"warm_ups": [WARM_UP]},
            QUIET,
            True,
            {"2 could not be had"},
            "7 ended 30 of 32 shards are here 2 could not be had 1.0 GiB",
        ),
        (
            {"jobs": [calm], "foresight": FORESEEN | lacks},
            "1.0 GiB more of cache, or 1.0 MiB/s more of link would let jobs read on.",
            False,
            set(),
            "",
        ),
        ({"tiers": [sick]}, "Tier nvme is read-only.", False, {"read-only"}, "EROFS 2 corruptions"),
        (
            {"jobs": ranks},
            "1 of 2 jobs wait; a rank of resnet does for 34 % of its time, for origin most.",
            False,
            set(),
            "Jobs 2, 3 ranks",
        ),
        (
            {"tiers": [tier | {"limit_bytes": half}]},
            "Others fill the disk of tier nvme: it may hold 32.0 MiB now.",
            False,
            {"others fill the disk: it may hold 32.0 MiB now"},
            "of 64.0 MiB",
        ),
        (
            {"gpus": GPUS},
            "No job is connected.",
            True,
            {"it fell off the bus"},
            "71 % of its multiprocessors, over 15 s 30 %, 10 % in 1.4 GiB/s out 1.9 MiB/s "
            "20.0 GiB of 80.0 GiB (25 %) resnet (session 1), 2 other processes",
        ),
        (
            {"gpus": GPUS | {"failing": "it is silent"}},
            "No job is connected.",
            True,
            {"it fell off the bus"},
            "They cannot be read: it is silent",
        ),
        (
            {"mounts": [MOUNT]},
            "/lustre hangs; readers stuck there: 1.",
            False,
            {"hangs"},
            "2, of which 1 are stuck",
        ),
        (
            {"mounts": [MOUNT | {"hangs": False}]},
            "No job is connected.",
            True,
            set(),
            "/lustre answers",
        ),
        (
            {"cluster": CLUSTER},
            "1 nodes of the cluster do not answer.",
            False,
            {"down", "connection refused"},
            "3.0 MiB received",
        ),
        (
            {"cluster": CLUSTER | {"members": [MEMBER], "is_listed": False}},
            "node0 is not in the member list: the others reject it.",
            False,
            set(),
            "draining",
        ),
    ]
    for over, verdict, is_well, trouble, words in states:
        override_status(browser, over)
        until(
            browser,
            f"{over} shows {verdict!r}, {trouble}, {words!r}",
            lambda state=(verdict, is_well, trouble, words): (
                shown_verdict(browser) == state[:2]
                and shown_troubles(browser) == state[2]
                and state[3] in " ".join(browser.find_element(By.TAG_NAME, "main").text.split())
            ),
        )


def test_update_keeps_unchanged_elements(node: Node, browser: webdriver.Chrome) -> None:
    """A screen reader's place and a selection survive changes beside them."""
    log_in(browser, node)

    def waits(session: int, seconds: float) -> dict[str, Any]:
        progress = JOB["progress"] | {"waiting_seconds": seconds}
        return JOB | {"session": session, "name": f"job {session}", "progress": progress}

    def row() -> str:
        return str(browser.find_element(By.CSS_SELECTOR, "#jobs-table [data-key='2']").text)

    override_status(browser, {"jobs": [waits(1, 62.0), waits(2, 62.0), waits(3, 0.0)]})
    until(browser, "jobs wait", lambda: "62 s so far" in row())
    keep = """
        const find = (what) => document.querySelector(what);
        window.kept = ["#jobs-table [data-key='2']", "#jobs-table [data-key='2'] th", "#figures dt",
                       "#charts figure", "#verdict > span", "#tiers-table td"].map(find);
        getSelection().selectAllChildren(window.kept[1]);
        window.heard = 0;
        new MutationObserver((changes) => {
            const of = (node) => node.nodeType === Node.TEXT_NODE ? node.parentElement : node;
            const loud = changes.filter(({ target }) => !of(target).closest("[aria-live=off]"));
            window.heard += loud.length;
        }).observe(find("#verdict"), { childList: true, characterData: true, subtree: true });
    """
    until(
        browser,
        "charts are shown",
        lambda: browser.find_elements(By.CSS_SELECTOR, "#charts figure"),
    )
    browser.execute_script(keep)
    selected = "return getSelection().toString()"
    first = browser.execute_script(selected)
    assert first.startswith("job 2"), first
    # A longer wait alone is not announced to a screen reader.
    override_status(browser, {"jobs": [waits(1, 64.0), waits(2, 64.0), waits(3, 0.0)]})
    until(browser, "time goes on", lambda: "64 s so far" in row())
    assert "64 s so far" in shown_verdict(browser)[0]
    assert browser.execute_script("return window.heard") == 0
    # The first job ends, and a new one starts.
    override_status(browser, {"jobs": [waits(2, 66.0), waits(3, 0.0), waits(4, 0.0)]})
    until(browser, "the other jobs stay", lambda: "66 s so far" in row())
    names = [one.text for one in browser.find_elements(By.CSS_SELECTOR, "#jobs-table tbody th")]
    assert [name.split("\n")[0] for name in names] == ["job 2", "job 3", "job 4"]
    assert browser.execute_script("return window.kept.every((one) => one.isConnected)")
    assert browser.execute_script(selected) == first
    assert browser.execute_script("return window.heard") > 0
    # Waiting jobs are sorted first.
    idle = JOB["progress"] | {"lately": JOB["progress"]["lately"] | {"waited_share": 0.001}}
    override_status(
        browser, {"jobs": [waits(2, 0.0) | {"progress": idle}, waits(3, 0.0), waits(4, 68.0)]}
    )
    until(browser, "they are sorted", lambda: "68 s so far" in text(browser, "jobs-table"))
    names = [one.text for one in browser.find_elements(By.CSS_SELECTOR, "#jobs-table tbody th")]
    assert [name.split("\n")[0] for name in names] == ["job 3", "job 4", "job 2"]


def test_error_of_the_page_is_not_blamed_on_the_daemon(
    node: Node, browser: webdriver.Chrome
) -> None:
    """The page reports its own error on unexpected data, and goes on polling."""
    log_in(browser, node)
    override_status(browser, {"tiers": None})
    until(
        browser, "the error is reported", lambda: "a mistake of the page" in text(browser, "state")
    )
    assert "does not answer" not in text(browser, "state")
    override_status(browser, {})
    until(browser, "it is live again", lambda: text(browser, "state") == "live")
