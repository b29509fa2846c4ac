"""A visit to a GPU: steps, limits and one folder, with stand-ins for the programs it calls."""

import glob
import shutil
import stat
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).resolve().parents[1]
TOOLKIT = "/usr/local/cuda*/bin/compute-sanitizer"
ASKS = "PROBE_ASKS"
# A program that does nothing well.
QUIET = "#!/usr/bin/env bash\n"
NEEDED = ("bash", "dirname", "date", "head", "tr", "sed", "mkdir", "tail", "cut", "timeout")
STEPS = ["facts", "measure", "tests", "memcheck", "probe"]
# The last words of tests under compute-sanitizer that all went well.
CHECKED = "echo '2 passed in 9 s'; echo '========= ERROR SUMMARY: 0 errors'"
SMI = "#!/usr/bin/env bash\necho 'NVIDIA H100 80GB HBM3'\n"


@pytest.fixture
def visit(tmp_path):
    """Run the script in a folder of its own, where only the named programs are."""
    home, programs = tmp_path / "home", tmp_path / "programs"
    (home / "scripts").mkdir(parents=True)
    programs.mkdir()
    for name in ("gpu.sh", "gpu-facts.sh"):
        shutil.copy(SCRIPTS / name, home / "scripts")
    for name in (*NEEDED, "env"):
        (programs / name).symlink_to(shutil.which(name))

    def run(*arguments, results=None, variables=None, **stand_ins):
        for name, text in stand_ins.items():
            program = programs / name.replace("_", "-")
            program.write_text(text)
            program.chmod(program.stat().st_mode | stat.S_IXUSR)
        environment = {"PATH": str(programs), "HOME": str(home)} | (variables or {})
        if results:
            environment["FOREBAY_GPU_RESULTS"] = str(results)
        command = [programs / "bash", home / "scripts/gpu.sh", *arguments]
        return subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=60
        )

    run.home = home
    return run


@pytest.mark.parametrize("what", ["visit", "test", "bench"])
def test_machine_without_a_gpu_is_said_and_ends_well(visit, what):
    done = visit(what)
    assert done.returncode == 0, done.stderr
    assert "nothing was run" in done.stdout
    assert not (visit.home / "benches").exists()


@pytest.mark.parametrize("arguments", [("visit", "probes"), ("visits",), ("visit", "facts", "x")])
def test_unknown_step_is_wrong_usage(visit, arguments):
    done = visit(*arguments, nvidia_smi=SMI)
    assert done.returncode == 2
    assert done.stderr.startswith("usage:")


def test_failed_step_stops_no_other_and_keeps_its_output(visit, tmp_path):
    # The probe fails; the figures do not.
    python = """#!/usr/bin/env bash
        echo "ran $*"
        case "$*" in *probe.py*) exit 3;; esac
    """
    results = tmp_path / "results"
    done = visit("visit", "probe", "measure", results=results, nvidia_smi=SMI, python3=python)
    assert done.returncode == 1
    assert (results / "probe.txt").read_text().startswith("ran benches/gpu/probe.py")
    assert (results / "measure.txt").read_text().startswith("ran benches/gpu/measure.py")
    assert "probe: code 3" in done.stdout
    assert "measure: code 0" in done.stdout


def test_steps_of_a_visit_fit_in_nine_minutes(visit, tmp_path):
    # The stand-in for `timeout` sees every step's limit, the signal, and the grace after it.
    limits = tmp_path / "limits"
    timeout = (
        f'#!/usr/bin/env bash\n[ "$1" = -k ] && echo "$2 $4 $5" >>{limits}\n{CHECKED}; exit 0\n'
    )
    (visit.home.parent / "programs/timeout").unlink()
    python = "#!/usr/bin/env bash\n"
    done = visit("visit", nvidia_smi=SMI, python3=python, timeout=timeout, compute_sanitizer=python)
    assert done.returncode == 0, done.stdout + done.stderr
    # What is wanted comes first.
    assert [line.split(":")[0] for line in done.stdout.splitlines()[-5:]] == STEPS
    graces, signals, each = zip(*map(str.split, limits.read_text().splitlines()), strict=True)
    # Tests print what they know when they are ended; the other scripts give memory back.
    assert signals == ("TERM", "TERM", "INT", "INT", "TERM")
    # Steps that take no time leave it to those after them; all together have nine minutes.
    each = [int(limit) for limit in each]
    assert each == sorted(each)
    assert each[-1] + sum(map(int, graces)) <= 9 * 60


def test_tests_of_a_visit_reset_no_context(visit, tmp_path):
    python = '#!/usr/bin/env bash\necho "ran $*"\n'
    done = visit("visit", "tests", results=tmp_path, nvidia_smi=SMI, python3=python)
    assert done.returncode == 0, done.stdout
    ran = [line for line in (tmp_path / "tests.txt").read_text().splitlines() if "pytest" in line]
    (line,) = ran
    assert "not destroyed_cuda_context" in line
    assert "test_gpu.py" in line


def test_both_files_of_tests_run_outside_a_visit(visit, tmp_path):
    python = '#!/usr/bin/env bash\necho "ran $*"\ncase "$*" in *test_gpu.py) exit 1;; esac\n'
    done = visit("test", results=tmp_path, nvidia_smi=SMI, python3=python)
    assert done.returncode == 1
    assert "test_gpu.py" in (tmp_path / "tests.txt").read_text()
    assert "test_model.py" in (tmp_path / "model.txt").read_text()
    assert "model: code 0" in done.stdout


@pytest.mark.skipif(bool(glob.glob(TOOLKIT)), reason="needs no-gpu: this machine has a toolkit")
def test_absent_sanitizer_is_a_failed_step(visit, tmp_path):
    done = visit("visit", "memcheck", results=tmp_path, nvidia_smi=SMI, python3=QUIET)
    assert done.returncode == 1
    assert "memcheck: failed" in done.stdout
    assert "not checked" in (tmp_path / "memcheck.txt").read_text()


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (CHECKED, 0),
        ("echo '2 passed in 9 s'; echo '========= ERROR SUMMARY: 3 errors'", 1),
        ("echo '2 passed in 9 s'", 1),
        ("echo '2 skipped in 9 s'; echo '========= ERROR SUMMARY: 0 errors'", 1),
        (f"{CHECKED}; exit 9", 1),
    ],
)
def test_memcheck_needs_passed_tests_and_no_errors(visit, tmp_path, said, code):
    sanitizer = f'#!/usr/bin/env bash\necho "$PYTORCH_NO_CUDA_MEMORY_CACHING $*"\n{said}\n'
    done = visit(
        "visit",
        "memcheck",
        results=tmp_path,
        nvidia_smi=SMI,
        python3=QUIET,
        compute_sanitizer=sanitizer,
    )
    assert done.returncode == code, done.stdout
    first = (tmp_path / "memcheck.txt").read_text().splitlines()[0]
    assert first.startswith("1 --tool memcheck")
    assert "-W default" in first


def test_step_that_is_killed_says_its_limit(visit, tmp_path):
    timeout = '#!/usr/bin/env bash\n[ "$1" = -k ] && exit 137\nexit 0\n'
    (visit.home.parent / "programs/timeout").unlink()
    done = visit("visit", "probe", results=tmp_path, nvidia_smi=SMI, python3=QUIET, timeout=timeout)
    assert done.returncode == 1
    assert "ended at its limit" in (tmp_path / "probe.txt").read_text()


# A Python whose pip installs what is named, but no two together, and nothing of a bad name.
PIP = """#!/usr/bin/env bash
    case "$*" in
    "-m pip"*)
        shift 7
        target=$1
        shift
        [ $# = 1 ] && [[ $1 != *bad* ]] || exit 1
        mkdir -p "$target"
        ;;
    "-c import forebay") [ -z "${NO_FOREBAY:-}" ] ;;
    *) echo "path $PYTHONPATH" ;;
    esac
"""


def test_wheel_that_does_not_fit_costs_no_other(visit, tmp_path):
    for name in ("a", "bad", "c"):
        (tmp_path / f"{name}.whl").touch()
    for name in ("mktemp", "rm"):
        (visit.home.parent / "programs" / name).symlink_to(shutil.which(name))
    variables = {"FOREBAY_WHEEL": f"{tmp_path}/*.whl"}
    done = visit(
        "visit", "probe", results=tmp_path, variables=variables, nvidia_smi=SMI, python3=PIP
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"not installed: {tmp_path}/bad.whl" in done.stdout
    path = (tmp_path / "probe.txt").read_text().split()[1]
    assert [Path(folder).name for folder in path.split(":")] == ["1", "3"]


def test_visit_without_forebay_ends_at_once(visit, tmp_path):
    results = tmp_path / "results"
    variables = {"NO_FOREBAY": "1"}
    done = visit("visit", results=results, variables=variables, nvidia_smi=SMI, python3=PIP)
    assert done.returncode == 1
    assert "does not import" in done.stdout
    assert not results.exists()


def test_results_lie_in_the_folder_that_is_brought_back(visit, tmp_path):
    for out, is_there in ((tmp_path, True), (tmp_path / "absent", False)):
        variables = {"OUT": str(out)}
        done = visit("visit", "probe", variables=variables, nvidia_smi=SMI, python3=QUIET)
        assert done.returncode == 0, done.stderr
        assert (out / "probe.txt").exists() == is_there
    assert (visit.home / "benches/results").exists()


def test_results_lie_in_a_folder_of_the_day_and_the_gpu(visit):
    done = visit("visit", "probe", nvidia_smi=SMI, python3="#!/usr/bin/env bash\n")
    assert done.returncode == 0, done.stderr
    (folder,) = (visit.home / "benches/results").iterdir()
    assert folder.name.endswith("-nvidia-h100-80gb-hbm3")
    assert (folder / "probe.txt").exists()


def test_probe_of_a_visit_has_the_time_of_all_its_questions():
    script = (SCRIPTS / "gpu.sh").read_text()
    probe = (SCRIPTS.parent / "benches/gpu/probe.py").read_text()
    step, asks = (int(script.partition(f" {name}=")[2].split()[0]) for name in ("PROBE", ASKS))
    assert float(probe.partition("\nSECONDS = ")[2].split()[0]) <= asks < step


def test_reset_test_is_one_of_the_gpu_tests():
    text = (SCRIPTS.parent / "bindings/python/tests/test_gpu.py").read_text()
    script = (SCRIPTS / "gpu.sh").read_text()
    name = script.partition("RESETS=")[2].split()[0]
    assert f"def test_{name}" in text
    # The last, so that what it leaves behind is met by no other.
    assert text.rindex("def test_") == text.index(f"def test_{name}")


def test_facts_need_none_of_the_programs_they_ask(visit, tmp_path):
    done = visit(
        "visit", "facts", results=tmp_path, nvidia_smi=SMI, python3="#!/usr/bin/env bash\n"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "# GPU" in (tmp_path / "facts.txt").read_text()
