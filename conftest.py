"""Skipped tests: each names what the machine lacks, and fails unless that may be missing.

Rule: a skip's reason is `needs NAME: how to get it`, or is pytest's own of a missing module. A skip
whose name is not in FOREBAY_TESTS_MAY_SKIP fails; one that is, is a line of the file FOREBAY_SKIPS,
which `make test` lists at its end.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

MAY_SKIP = "FOREBAY_TESTS_MAY_SKIP"
# As for `cargo test` in .cargo/config.toml: few machines have a GPU. `make test` allows more.
MAY_SKIP_UNSET = "gpu"
# The name of a requirement: what the test says, or a module that pytest did not find.
NAMED = re.compile(r"(?:Skipped: )?(?:needs ([\w.-]+): |could not import '([\w.]+)')")


def record(requirement: str, test: str, reason: str) -> None:
    """Adds a line to the list of skips."""
    target = Path(__file__).parent / "target"
    path = Path(os.environ.get("FOREBAY_SKIPS") or target / "skips")
    path.parent.mkdir(exist_ok=True)
    with path.open("a") as file:
        file.write(f"{requirement}\t{test}\t{reason}\n")


def settle(report: pytest.TestReport | pytest.CollectReport, test: str) -> None:
    """Records a skip that is allowed; fails one that is not."""
    assert isinstance(report.longrepr, tuple)
    reason = " ".join(str(report.longrepr[2]).split()).removeprefix("Skipped: ")
    found = NAMED.match(reason)
    requirement = next(filter(None, found.groups())) if found else ""
    allowed = os.environ.get(MAY_SKIP, MAY_SKIP_UNSET).replace(",", " ").split()
    if requirement in allowed:
        record(requirement, test, reason)
        return
    report.outcome = "failed"
    report.longrepr = (
        f"{test} would be skipped: {reason}\n"
        f"Provide what it needs, or name it: {MAY_SKIP}={requirement}"
        if requirement
        else f"{test} is skipped without a requirement; "
        f"the reason must be `needs NAME: …`: {reason}"
    )


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Iterator[None]:
    """Settles skips of tests."""
    report = yield
    if report.skipped and not hasattr(report, "wasxfail"):
        settle(report, report.nodeid)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Iterator[None]:
    """Settles skips of whole files."""
    report = yield
    if report.skipped:
        settle(report, report.nodeid)
    return report
