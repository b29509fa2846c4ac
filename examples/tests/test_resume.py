"""The example `resume.py`: its comparison finds what is wrong, and a real kill changes nothing."""

import copy
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent
sys.path.insert(0, str(EXAMPLES))

import resume  # noqa: E402

TIMEOUT_S = 500


def run(name, ranks, start, last):
    """Return a run of two epochs of ten steps, with two samples each."""
    steps = {}
    for step in range(start + 1, last + 1):
        epoch, place = divmod(step - 1, 10)
        keys = [f"{2 * place}", f"{2 * place + 1}"]
        steps[step] = (epoch, 1 / step, keys)
    return resume.Run(name, ranks, start, steps)


@pytest.fixture
def runs():
    return [run("undisturbed", 4, 0, 20), run("killed", 4, 0, 13), run("resumed", 2, 8, 20)]


def test_equal_runs_are_told_with_their_figures(runs):
    report, is_same = resume.verdict(runs)
    assert is_same
    rows = {line.split()[0]: line.split() for line in report.splitlines()[:4]}
    assert rows["killed"][1:4] == ["4", "1...13", "26"]
    assert rows["resumed"][1:4] == ["2", "9...20", "24"]
    assert "so 5 steps were lost" in report
    assert "exactly once: 20, 20." in report


def change(runs, step, **values):
    """Change one step of the resumed run."""
    epoch, loss, keys = runs[2].steps[step]
    new = {"epoch": epoch, "loss": loss, "keys": keys} | values
    runs[2].steps[step] = (new["epoch"], new["loss"], new["keys"])


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"loss": 0.084}, ["step 12 has a loss"]),
        # The samples of the step before.
        ({"keys": ["0", "1"]}, ["step 12 trained", "2 samples came twice", "2 samples came never"]),
        ({"keys": ["2"]}, ["step 12 trained", "1 samples came never, 3 first"]),
    ],
)
def test_one_wrong_step_is_found(runs, values, told):
    change(runs, 12, **values)
    report, is_same = resume.verdict(runs)
    assert not is_same
    assert all(part in report for part in told)


def test_missing_steps_are_found(runs):
    del runs[2].steps[20]
    assert not resume.verdict(runs)[1]
    # Work that no checkpoint has does not count.
    late = copy.deepcopy(runs)
    late[2] = run("resumed", 2, 9, 20)
    late[1] = run("killed", 4, 0, 8)
    assert not resume.verdict(late)[1]


def test_half_a_line_of_a_killed_rank_is_no_step(tmp_path):
    first = '{"resumed": null, "steps": 0, "ranks": 2}\n'
    step = '{"step": 1, "epoch": 0, "loss": 1.0, "keys": ["a"]}\n'
    (tmp_path / "rank-0.jsonl").write_text(first + step + step.replace('"step": 1', '"step": 2'))
    (tmp_path / "rank-1.jsonl").write_text(first + step + '{"step": 2, "ep')
    assert resume.Run.read("killed", tmp_path).steps == {1: (0, 1.0, ["a", "a"])}


def test_killed_training_resumes_on_half_of_its_ranks():
    ended = subprocess.run(
        [sys.executable, EXAMPLES / "resume.py", "--samples", "404", "--epochs", "2", "--every=5"],
        stdout=subprocess.PIPE,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    sys.stdout.write(ended.stdout)
    assert ended.returncode == 0
    assert "exactly once: 404, 404." in ended.stdout
