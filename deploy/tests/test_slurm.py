"""Slurm's scripts, run by a real slurmctld with two slurmds beside a real daemon of Forebay."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SCRIPTS = Path(__file__).parent.parent / "slurm"

# Bound of each wait: slurmd and slurmctld answer within a second or two, on a busy machine later.
PATIENCE = 60.0
# Interval between two looks at what has no event to wait for.
LOOK = 0.1

CONF = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munge.socket
StateSaveLocation={root}/state
SlurmdSpoolDir={root}/spool-%n
SlurmctldPidFile={root}/slurmctld.pid
SlurmdPidFile={root}/slurmd-%n.pid
SlurmctldLogFile={root}/slurmctld.log
SlurmdLogFile={root}/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdParameters=config_overrides
Prolog={root}/prolog.sh
PrologFlags=Alloc
TaskProlog={root}/task-prolog.sh
NodeName=gpu-1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=4 RealMemory=1024
NodeName=gpu-2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=4 RealMemory=1024
PartitionName=all Nodes=ALL Default=YES State=UP
"""

FOREBAY = """\
[daemon]
socket = "{root}/forebayd.sock"
state = "{root}/forebay-state"
memory = "256MiB"
[[tier]]
name = "disk"
path = "{root}/cache"
capacity = "64MiB"
[[source]]
match = "{root}/data/"
"""


def until(true: Callable[[], Any], what: Callable[[], str]) -> Any:
    """Return the first truth of a question that is asked again and again."""
    end = time.monotonic() + PATIENCE
    while True:
        if found := true():
            return found
        if time.monotonic() > end:
            pytest.fail(what())
        time.sleep(LOOK)


@dataclass
class Cluster:
    """A cluster of two nodes on this machine."""

    root: Path
    forebay: str
    environment: dict[str, str]

    def run(self, *command: str, **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command of Slurm's or Forebay's."""
        return subprocess.run(
            command,
            env=self.environment,
            cwd=self.root,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            **options,
        )

    def told(self, *command: str) -> str:
        """Return the output of a command that succeeds."""
        done = self.run(*command)
        assert done.returncode == 0, done.stderr + self.logs()
        return done.stdout

    def states(self) -> set[str]:
        """Return the states of the nodes."""
        return set(self.run("sinfo", "--noheader", "-N", "-o", "%T").stdout.split())

    def logs(self) -> str:
        """Return the ends of all logs."""
        ends = [(path.name, path.read_text()[-2000:]) for path in self.root.glob("*.log")]
        return "\n".join(f"{name}:\n{text}" for name, text in ends)


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def install(root: Path, forebay: str) -> None:
    """Put the scripts into the cluster, with this machine's paths in place of a node's."""
    for path in SCRIPTS.iterdir():
        text = path.read_text()
        for there, here in [
            ("/usr/bin/forebay", forebay),
            ("/etc/forebay/forebay.toml", f"{root}/forebay.toml"),
            ("/run/forebay/forebayd.sock", f"{root}/forebayd.sock"),
        ]:
            text = text.replace(there, here)
        # The daemon of these tests is not at its usual place; slurmd clears the environment.
        text = text.replace(
            "set -u\n", f"set -u\nexport FOREBAY_DAEMON=unix:{root}/forebayd.sock\n"
        )
        copy = root / path.name
        copy.write_text(text)
        copy.chmod(0o755)


@pytest.fixture(scope="module")
def cluster(forebay: str) -> Iterator[Cluster]:
    """Start a cluster, and end it."""
    for program in ["/usr/sbin/slurmctld", "/usr/sbin/slurmd", "/usr/sbin/munged"]:
        if not Path(program).exists():
            pytest.skip("needs slurm: make setup-deploy")
    if os.geteuid() != 0:
        pytest.skip("needs root: run the tests as root")
    # The path of a socket has 108 bytes.
    root = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    root.chmod(0o755)
    for name in ["state", "cache", "data", "spool-gpu-1", "spool-gpu-2"]:
        (root / name).mkdir()
    install(root, forebay)
    host = socket.gethostname().split(".")[0]
    conf = root / "slurm.conf"
    conf.write_text(CONF.format(root=root, host=host, ports=free_ports(3)))
    (root / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
    (root / "forebay.toml").write_text(FOREBAY.format(root=root))
    key = root / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    # sbatch finds `forebay` by the path of whoever submits.
    path = f"{Path(forebay).parent}:/usr/sbin:{os.environ['PATH']}"
    environment = {**os.environ, "SLURM_CONF": str(conf), "PATH": path}
    environment.pop("FOREBAY_DAEMON", None)
    made = Cluster(root, forebay, environment)
    munged = ["/usr/sbin/munged", "--foreground", "--force", f"--key-file={key}"]
    munged += [f"--socket={root}/munge.socket", f"--pid-file={root}/munge.pid"]
    munged += [f"--log-file={root}/munged.log", f"--seed-file={root}/munge.seed"]
    commands = [
        munged,
        [forebay, "daemon", "--config", str(root / "forebay.toml")],
        ["/usr/sbin/slurmctld", "-D"],
        ["/usr/sbin/slurmd", "-D", "-N", "gpu-1"],
        ["/usr/sbin/slurmd", "-D", "-N", "gpu-2"],
    ]
    running = []
    try:
        for number, command in enumerate(commands):
            with (root / f"output-{number}.log").open("w") as log:
                running.append(
                    subprocess.Popen(command, env=environment, stdout=log, stderr=log, cwd=root)
                )
            if number == 0:
                until((root / "munge.socket").exists, made.logs)
        until((root / "forebayd.sock").exists, made.logs)
        until(lambda: made.states() == {"idle"}, made.logs)
        yield made
    finally:
        for process in reversed(running):
            process.terminate()
        for process in reversed(running):
            process.wait(PATIENCE)
        shutil.rmtree(root)


def shard(path: Path) -> Path:
    """Make a shard of one sample."""
    member = path.with_suffix(".txt")
    member.write_text(path.name * 1000)
    with tarfile.open(path, "w") as tar:
        tar.add(member, "0.txt")
    member.unlink()
    return path


def cached(cluster: Cluster) -> int:
    """Return the bytes that the daemon has cached."""
    daemon = f"--daemon=unix:{cluster.root}/forebayd.sock"
    told = cluster.told(cluster.forebay, "status", "--json", daemon)
    return sum(tier["used_bytes"] for tier in json.loads(told)["tiers"])


def test_every_task_knows_the_daemon(cluster):
    told = cluster.told("srun", "-N2", "-n2", "sh", "-c", "echo $SLURMD_NODENAME $FOREBAY_DAEMON")
    daemon = f"unix:{cluster.root}/forebayd.sock"
    assert sorted(told.splitlines()) == [f"gpu-1 {daemon}", f"gpu-2 {daemon}"]
    # A job chooses another.
    environment = {**cluster.environment, "FOREBAY_DAEMON": "embedded"}
    other = Cluster(cluster.root, cluster.forebay, environment)
    assert other.told("srun", "-n1", "sh", "-c", "echo $FOREBAY_DAEMON").split() == ["embedded"]


def test_shards_are_fetched_while_the_job_waits(cluster):
    url = shard(cluster.root / "data" / "it's $HOME.tar")
    plain = shard(cluster.root / "data" / "plain.tar")
    # Other jobs leave a CPU of each node.
    held = cluster.told("sbatch", "--parsable", "-N2", "--ntasks-per-node=3", "--wrap", "sleep 600")
    job = cluster.root / "job.sbatch"
    job.write_text(
        "#!/bin/sh\n#SBATCH --nodelist=gpu-[1-2]\n#SBATCH --ntasks-per-node=4\n"
        f"#FOREBAY warm {url}\n#FOREBAY warm {plain}\nsrun true\n"
    )
    told = cluster.run("./forebay-sbatch", "--parsable", "--time=5", str(job))
    assert told.returncode == 0, told.stderr
    number = told.stdout.strip()
    both = sum(path.stat().st_size for path in (url, plain))
    until(lambda: cached(cluster) >= both, cluster.logs)
    state = cluster.told("squeue", "--noheader", "--jobs", number, "-o", "%T").strip()
    assert state == "PENDING"
    cluster.told("scancel", held.strip(), number)
    until(lambda: cluster.states() == {"idle"}, cluster.logs)


def test_header_without_nodes_is_told(cluster):
    job = cluster.root / "nowhere.sbatch"
    job.write_text("#!/bin/sh\n#FOREBAY warm /data/a.tar\ntrue\n")
    told = cluster.run("./forebay-sbatch", "--parsable", str(job))
    assert told.returncode == 0
    assert "#FOREBAY nodes" in told.stderr
    assert cluster.run("./forebay-sbatch", "--parsable").returncode == 2
    until(lambda: not cluster.told("squeue", "--noheader").strip(), cluster.logs)


def test_node_that_doctor_rejects_takes_no_job(cluster):
    """The last test: it drains a node."""
    conf = cluster.root / "forebay.toml"
    good = conf.read_text()
    conf.write_text(good.replace('capacity = "64MiB"', 'capacity = "900TiB"'))
    job = cluster.told("sbatch", "--parsable", "-w", "gpu-1", "--wrap", "true").strip()
    until(lambda: cluster.states() & {"drained", "draining"}, cluster.logs)
    state = cluster.told("squeue", "--noheader", "--jobs", job, "-o", "%T").strip()
    assert state == "PENDING"
    cluster.told("scancel", job)
    # The node takes jobs again once what is wrong is mended.
    conf.write_text(good)
    cluster.told("scontrol", "update", "nodename=gpu-1", "state=resume")
    assert cluster.told("srun", "-w", "gpu-1", "echo", "back").split() == ["back"]


def test_prolog_wants_a_daemon(forebay, tmp_path):
    install(tmp_path, forebay)
    (tmp_path / "forebay.toml").write_text(FOREBAY.format(root=tmp_path))
    told = subprocess.run([tmp_path / "prolog.sh"], capture_output=True, text=True)
    assert told.returncode == 1
    assert "no daemon" in told.stderr


@pytest.mark.parametrize("name", sorted(path.name for path in SCRIPTS.iterdir()))
def test_shellcheck_finds_no_fault(name):
    if shutil.which("shellcheck") is None:
        pytest.skip("needs shellcheck: make setup-deploy")
    told = subprocess.run(["shellcheck", SCRIPTS / name], capture_output=True, text=True)
    assert told.stdout == ""
