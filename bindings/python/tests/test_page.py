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
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait

import forebay
from conftest import write_shard

TOKEN = "0123456789abcdef0123456789abcdef"

# The page looks every two seconds; a busy machine takes its time, too.
WITHIN = 30

# A job that would like to be markup.
NAME = "<img src=x onerror=document.title='hit'>"


class Node:
    """A daemon with a port, and its files."""

    def __init__(self, root: Path) -> None:
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
    WebDriverWait(browser, WITHIN).until(lambda _: condition(), what)


def text(browser: webdriver.Chrome, name: str) -> str:
    return str(browser.find_element(By.ID, name).text)


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
