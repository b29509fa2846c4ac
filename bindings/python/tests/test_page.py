"""The status page in a real browser: it shows what the daemon says, and no name is markup."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
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
from conftest import write_shard

TOKEN = "0123456789abcdef0123456789abcdef"

# The page looks every two seconds; a busy machine takes its time, too.
WITHIN = 30

# Jobs whose requests together are enough for an endpoint to be taken to be down.
JOBS = 4

# A job that would like to be markup.
NAME = "<img src=x onerror=document.title='hit'>"


class Node:
    """A daemon with a port, its files, and whatever else its configuration is to say."""

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


@pytest.fixture
def browser() -> Iterator[webdriver.Chrome]:
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no chromium here: `make setup` installs one where it may")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument("--window-size=1280,1400")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    browser = webdriver.Chrome(options, webdriver.ChromeService(driver))
    yield browser
    browser.quit()


def until(browser: webdriver.Chrome, what: str, condition: Any) -> None:
    """Wait for it; the page may draw itself anew while it is looked at, and is looked at again."""
    wait = WebDriverWait(browser, WITHIN, ignored_exceptions=[StaleElementReferenceException])
    wait.until(lambda _: condition(), what)


def text(browser: webdriver.Chrome, name: str) -> str:
    return str(browser.find_element(By.ID, name).text)


def admit(browser: webdriver.Chrome, node: Node) -> None:
    """Open the page as an admin does, and wait until it is live."""
    browser.get(node.url)
    until(browser, "it is live", lambda: text(browser, "state") == "live")
    browser.find_element(By.TAG_NAME, "summary").send_keys(Keys.ENTER)
    browser.find_element(By.ID, "secret").send_keys(TOKEN, Keys.ENTER)
    until(browser, "it is all seen", lambda: browser.find_element(By.ID, "jobs").is_displayed())


def put(browser: webdriver.Chrome, over: dict[str, Any]) -> None:
    """Put this into what the daemon's status says, as the page sees it from its next look on."""
    wrapped = """
        window.daemons ??= window.fetch;
        const over = arguments[0];
        window.fetch = async (path, asked) => {
            const answer = await window.daemons(path, asked);
            if (!path.endsWith("/status")) return answer;
            return Response.json({ ...await answer.json(), ...over });
        };
    """
    browser.execute_script(wrapped, over)


def told(browser: webdriver.Chrome) -> tuple[str, bool]:
    """The verdict, and whether it is shown as that of a node that is well."""
    verdict = browser.find_element(By.ID, "verdict")
    return str(verdict.text), verdict.get_attribute("class") == ""


def bad(browser: webdriver.Chrome) -> set[str]:
    """Give what is shown as trouble in tables."""
    return {one.text for one in browser.find_elements(By.CSS_SELECTOR, "td .bad")}


def picture(browser: webdriver.Chrome, name: str) -> None:
    """Keep what is seen, where somebody wants it for the documents."""
    if folder := os.environ.get("FOREBAY_PICTURES"):
        browser.save_screenshot(f"{folder}/{name}.png")


def test_it_shows_to_each_what_they_may_know(node: Node, browser: webdriver.Chrome) -> None:
    samples = [(f"{number:04}", {"bin": bytes(50_000)}) for number in range(64)]
    urls = [write_shard(node.root / f"{shard}.tar", samples) for shard in range(4)]
    batch: dict[str, Any] = {"fields": {"x": forebay.Bytes("bin")}, "batch_size": 16}
    daemon = f"unix:{node.root}/d.sock"
    with forebay.DataLoader(urls, **batch, daemon=daemon, job=NAME, framework="numpy") as loader:
        for _ in range(3):
            assert sum(len(one["x"]) for one in loader) == 256
        browser.get(node.url)

        # Strangers see how the daemon does, and nobody's names.
        until(browser, "it is live", lambda: text(browser, "state") == "live")
        assert "nvme" in text(browser, "tiers-table")
        seen = browser.find_element(By.TAG_NAME, "body").text
        assert NAME not in seen
        assert "digits" not in seen
        assert not browser.find_element(By.ID, "jobs").is_displayed()

        # With a wrong token no more, and they are told so. All of it goes by keyboard.
        browser.find_element(By.TAG_NAME, "summary").send_keys(Keys.ENTER)
        for secret in ("wrong", TOKEN):
            browser.find_element(By.ID, "secret").send_keys(secret, Keys.ENTER)
            if secret == "wrong":
                until(browser, "it is refused", lambda: "not the token" in text(browser, "refused"))
        until(browser, "names are seen", lambda: NAME in text(browser, "jobs-table"))
        (job,) = node.status()["jobs"]
        shown = text(browser, "jobs-table")
        assert f"{job['progress']['samples']} samples so far" in shown
        assert "digits" in text(browser, "datasets-table")
        assert "of 32.0 MiB" in text(browser, "datasets-table")
        assert browser.title == "Forebay", "a job's name is markup"
        until(browser, "there is a history", lambda: "From tiers" in text(browser, "history"))
        picture(browser, "status-light")

        # By night as by day.
        ground = "return getComputedStyle(document.body).backgroundColor"
        light = browser.execute_script(ground)
        dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
        assert browser.execute_script(ground) != light
        picture(browser, "status-dark")

    until(browser, "the job is gone", lambda: "No job is connected" in text(browser, "jobs-table"))
    # Nothing came from elsewhere, and nothing was forbidden by the page's own policy.
    loaded = browser.execute_script(
        "return performance.getEntriesByType('resource').map((one) => one.name)"
    )
    assert loaded
    assert all(one.startswith(node.url) for one in loaded), loaded
    severe = [one for one in browser.get_log("browser") if one["level"] == "SEVERE"]
    assert all("401" in one["message"] for one in severe), severe


def test_it_says_that_the_daemon_is_gone_and_comes_back(
    node: Node, browser: webdriver.Chrome
) -> None:
    browser.get(node.url)
    until(browser, "it is live", lambda: text(browser, "state") == "live")
    os.kill(node.process.pid, signal.SIGSTOP)
    until(browser, "it is missed", lambda: "does not answer" in text(browser, "state"))
    assert "nvme" in text(browser, "tiers-table"), "what was known is still there"
    os.kill(node.process.pid, signal.SIGCONT)
    until(browser, "it is live again", lambda: text(browser, "state") == "live")


def test_who_cannot_see_finds_the_way(node: Node, browser: webdriver.Chrome) -> None:
    """What a screen reader goes by: a language, one first heading, names of all controls."""
    browser.get(node.url)
    until(browser, "it is live", lambda: text(browser, "state") == "live")
    tree = browser.execute_cdp_cmd("Accessibility.getFullAXTree", {})["nodes"]
    named = {"region", "textbox", "button", "meter", "link", "img", "figure"}
    for one in tree:
        if one.get("role", {}).get("value") in named and not one["ignored"]:
            assert one.get("name", {}).get("value"), one
    assert browser.execute_script("return document.documentElement.lang") == "en"
    assert len(browser.find_elements(By.TAG_NAME, "h1")) == 1
    browser.find_element(By.TAG_NAME, "body").send_keys(Keys.TAB)
    assert browser.switch_to.active_element.text == "To the jobs"


def test_an_endpoint_that_does_not_answer_is_no_good_news(
    tmp_path: Path, browser: webdriver.Chrome, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Jobs ask an endpoint where nobody listens until it is taken to be down."""
    with closing(socket.socket()) as nobody:
        nobody.bind(("127.0.0.1", 0))
        endpoint = f"http://127.0.0.1:{nobody.getsockname()[1]}"
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
            admit(browser, node)
            news = f"{endpoint} does not answer."
            until(browser, news, lambda: told(browser) == (news, False))
            assert bad(browser) == {"taken to be down"}
        finally:
            node.end()


# A job as the daemon tells of it, and where it will be.
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
FORESEEN: dict[str, Any] = {"bandwidth": 1 << 20, "slack": 3.0, "jobs": [], "lacks": None}


def lacking(**lacks: Any) -> dict[str, Any]:
    """What is foreseen of a job whose first shard that is not here is this."""
    return FORESEEN | {"jobs": [{"job": 1, "lacks": {"url": "s3://bucket/42.tar"} | lacks}]}


def test_it_says_what_is_wrong_and_what_is_not(node: Node, browser: webdriver.Chrome) -> None:
    """Each state that a node can be in, put into what its daemon says."""
    admit(browser, node)
    status = node.status()
    (tier,) = status["tiers"]
    calm = JOB | {
        "progress": JOB["progress"] | {"lately": JOB["progress"]["lately"] | {"waited_share": 0.01}}
    }
    mount = {"mount": "/lustre", "hangs": True, "readers": [7, 8], "stuck": [8]}
    sick = tier | {"condition": "read-only", "why": "EROFS", "corruptions": 2}
    waits = "1 of 1 jobs wait; resnet does for 34 % of its time, for origin most."
    lacks = {"lacks": {"cache": 1 << 30, "bandwidth": 1 << 20}}
    late = "needed in 12 s, arrives in 40 s"
    in_time = "needed in 40 s, arrives in 12 s"
    never = "needed in 12 s; its origin does not give it"
    of_time = [({"needed_in": 12.0, "arrives_in": 40.0}, late), ({"needed_in": 12.0}, never)]
    # What is put; the verdict, whether that is good news, what is trouble, what else is said.
    states: list[tuple[dict[str, Any], str, bool, set[str], str]] = [
        ({"jobs": [calm]}, "No job waits for data.", True, set(), "it told no order beforehand"),
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
            {"jobs": [calm], "foresight": FORESEEN | lacks},
            "1.0 GiB more of cache, or 1.0 MiB/s more of link would let jobs read on.",
            False,
            set(),
            "",
        ),
        ({"tiers": [sick]}, "Tier nvme is read-only.", False, {"read-only"}, "EROFS 2 corruptions"),
        (
            {"mounts": [mount]},
            "/lustre hangs; readers stuck there: 1.",
            False,
            {"hangs"},
            "2, of which 1 are stuck",
        ),
        (
            {"mounts": [mount | {"hangs": False}]},
            "No job is connected.",
            True,
            set(),
            "/lustre answers",
        ),
    ]
    for over, verdict, is_well, trouble, words in states:
        put(browser, over)
        until(
            browser,
            f"{over} shows {verdict!r}, {trouble}, {words!r}",
            lambda state=(verdict, is_well, trouble, words): (
                told(browser) == state[:2]
                and bad(browser) == state[2]
                and state[3] in " ".join(browser.find_element(By.TAG_NAME, "main").text.split())
            ),
        )
