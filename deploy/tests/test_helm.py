"""The chart, as helm renders it and the schemas of Kubernetes judge it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parent.parent
ROOT = DEPLOY.parent
CHART = DEPLOY / "helm/forebay"
FULL = DEPLOY / "helm/examples/full-values.yaml"
JOB = DEPLOY / "helm/examples/train-job.yaml"
RULES = DEPLOY / "prometheus/forebay.rules.yml"

# The oldest release that the chart accepts, one in wide use, and the newest whose schema is known.
KUBERNETES = ["1.28", "1.33", "1.37"]

# Resources of other projects, of which Kubernetes has no schemas.
FOREIGN = {"Certificate", "PrometheusRule", "ServiceMonitor"}

# Says of each document in the file: its kind, and the first mistake, or that no schema is known.
JUDGE = """
import json, sys, yaml, kubernetes_validate as judge
for document in filter(None, yaml.safe_load_all(open(sys.argv[1]))):
    try:
        judge.validate(document, sys.argv[2], strict=True)
        said = ""
    except judge.SchemaNotFoundError:
        said = "unknown"
    except judge.ValidationError as error:
        said = f"{error.path}: {error.message}"
    print(json.dumps([document["kind"], said]))
"""

Documents = list[dict[str, Any]]
Render = Callable[..., Documents]


@pytest.fixture(scope="module")
def render(helm: Path) -> Render:
    """Return a function that renders the chart with some options of helm."""

    def rendered(*options: str) -> Documents:
        command = [helm, "template", "forebay", CHART, "--namespace", "ml", *options]
        told = subprocess.run(command, capture_output=True, text=True)
        assert told.returncode == 0, told.stderr
        return [document for document in yaml.safe_load_all(told.stdout) if document]

    return rendered


@pytest.fixture(scope="module")
def plain(render: Render) -> Documents:
    """Return the chart with its own values."""
    return render()


@pytest.fixture(scope="module")
def full(render: Render) -> Documents:
    """Return the chart with every part in use."""
    return render("--values", str(FULL))


def one(documents: Documents, kind: str, name: str = "forebay") -> dict[str, Any]:
    """Return the only document of a kind and name."""
    found = [d for d in documents if d["kind"] == kind and d["metadata"]["name"] == name]
    assert len(found) == 1, (kind, name)
    return found[0]


def pod(documents: Documents) -> dict[str, Any]:
    """Return the pod's specification."""
    spec: dict[str, Any] = one(documents, "DaemonSet")["spec"]["template"]["spec"]
    return spec


def step(documents: Documents, name: str) -> dict[str, Any]:
    """Return an init container."""
    found: dict[str, Any] = next(c for c in pod(documents)["initContainers"] if c["name"] == name)
    return found


@pytest.mark.parametrize("options", [[], ["--values", str(FULL)]], ids=["plain", "full"])
def test_helm_finds_no_fault(helm, options):
    told = subprocess.run(
        [helm, "lint", "--strict", CHART, *options], capture_output=True, text=True
    )
    assert told.returncode == 0, told.stdout + told.stderr


@pytest.mark.parametrize(
    ("value", "key"),
    [
        ("tierz=1", "tierz"),
        ("image.repositry=x", "repositry"),
        ("tiers[0].capacty=1TiB", "capacty"),
        ("tiers[0].capacity=1TiX", "capacity"),
        ("config.dataset[0].quoata.max=1GiB", "quoata"),
        ("config.source[0].endpont=x", "endpont"),
        ("config.daemon.socket=/x", "socket"),
        ("user.uid=root", "uid"),
        ("seccomp.type=Unconfined", "type"),
        ("cluster.enabled=true", "nodes"),
        ("networkPolicy.storePorts[0]=70000", "storePorts"),
    ],
)
def test_helm_rejects_a_wrong_value(helm, value, key):
    command = [helm, "template", "forebay", CHART, "--set", value]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode != 0
    assert key in told.stderr


def test_schema_is_that_of_the_configuration(forebay):
    script = ROOT / "scripts/chart_schema.py"
    command = [sys.executable, script, "--check", "--forebay", forebay]
    assert subprocess.run(command).returncode == 0, f"again with: {script} --forebay forebay"


def judge(schemas: Path, path: Path, version: str) -> list[tuple[str, str]]:
    """Return kind and first mistake of each document in a file."""
    told = subprocess.run(
        [schemas, "-c", JUDGE, path, version], capture_output=True, text=True, check=True
    )
    return [tuple(json.loads(line)) for line in told.stdout.splitlines()]


@pytest.mark.parametrize("version", KUBERNETES)
@pytest.mark.parametrize("values", ["plain", "full"])
def test_kubernetes_accepts_every_document(request, schemas, tmp_path, values, version):
    documents = request.getfixturevalue(values)
    path = tmp_path / "rendered.yaml"
    path.write_text(yaml.safe_dump_all(documents))
    said = judge(schemas, path, version)
    assert len(said) == len(documents)
    assert {kind for kind, text in said if text == "unknown"} <= FOREIGN
    assert [pair for pair in said if pair[1] not in ("", "unknown")] == []
    assert [text for _, text in judge(schemas, JOB, version)] == [""]


def test_judge_finds_a_misspelt_field(schemas, tmp_path, plain):
    path = tmp_path / "rendered.yaml"
    path.write_text(re.sub("hostPID", "hostPid", yaml.safe_dump_all(plain)))
    assert any("hostPid" in text for _, text in judge(schemas, path, KUBERNETES[0]))


@pytest.mark.parametrize("values", ["plain", "full"])
def test_pod_has_few_rights(request, values):
    spec = pod(request.getfixturevalue(values))
    assert spec["automountServiceAccountToken"] is False
    assert [spec[name] for name in ("hostNetwork", "hostPID", "hostIPC")] == [False] * 3
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["runAsUser"] == 64980
    assert spec["securityContext"]["fsGroup"] == 64980
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    added = {"forebayd": ["IPC_LOCK"], "own-folders": ["CHOWN"]}
    for container in spec["containers"] + spec.get("initContainers", []):
        rights = container["securityContext"]
        assert rights["privileged"] is False
        assert rights["allowPrivilegeEscalation"] is False
        assert rights["readOnlyRootFilesystem"] is True
        assert rights["capabilities"]["drop"] == ["ALL"]
        assert rights["capabilities"].get("add", []) == added.get(container["name"], [])
        as_root = container["name"] in ("own-folders", "install-seccomp")
        assert rights.get("runAsUser") == (0 if as_root else None)
        assert container["resources"]["limits"]["memory"]
        for mount in container["volumeMounts"]:
            if mount["mountPath"].startswith("/etc/") and container["name"] == "forebayd":
                assert mount.get("readOnly") is True, mount


def test_profile_of_io_uring_is_for_the_daemon_alone(plain, full):
    (daemon,) = pod(plain)["containers"]
    assert daemon["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    (daemon,) = pod(full)["containers"]
    profile = {"type": "Localhost", "localhostProfile": "forebay/forebay.json"}
    assert daemon["securityContext"]["seccompProfile"] == profile
    for container in pod(full)["initContainers"]:
        assert "seccompProfile" not in container["securityContext"]
    brought = one(full, "ConfigMap")["data"]["seccomp.json"]
    assert json.loads(brought) == json.loads((DEPLOY / "seccomp/forebay.json").read_text())


def test_root_has_no_more_rights_than_others(render):
    documents = render("--set", "user.uid=0", "--set", "user.gid=0")
    assert pod(documents)["securityContext"]["runAsNonRoot"] is False
    assert "initContainers" not in pod(documents)
    (daemon,) = pod(documents)["containers"]
    assert daemon["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["IPC_LOCK"]}


def test_secrets_are_closed_to_others(full):
    """The daemon rejects a key that others could read, or its group could write."""
    for volume in pod(full)["volumes"]:
        secret = volume.get("secret") or volume.get("projected")
        if secret:
            assert secret["defaultMode"] & 0o027 == 0, volume["name"]
    certificates = {d["spec"]["secretName"] for d in full if d["kind"] == "Certificate"}
    assert certificates == {"forebay-api", "forebay-peer-gpu-1", "forebay-peer-gpu-2"}
    projected = next(v["projected"] for v in pod(full)["volumes"] if v["name"] == "peers")
    assert {s["secret"]["name"] for s in projected["sources"]} < certificates
    names = {n: d["spec"]["dnsNames"] for d in full if (n := d["metadata"]["name"]) in certificates}
    assert names["forebay-peer-gpu-1"] == ["gpu-1"]


def test_folders_of_the_node_are_those_of_the_values(full):
    paths = {
        v["name"]: (v["hostPath"]["path"], v["hostPath"]["type"])
        for v in pod(full)["volumes"]
        if "hostPath" in v
    }
    assert paths == {
        "state": ("/var/lib/forebay", "DirectoryOrCreate"),
        "sockets": ("/run/forebay-tenants", "DirectoryOrCreate"),
        # A drive that is not mounted has no such folder, and the system's disk stays as it is.
        "tier-nvme0": ("/mnt/nvme0/forebay", "Directory"),
        "tier-hdd": ("/mnt/hdd/forebay", "Directory"),
        "kubelet": ("/var/lib/kubelet/seccomp/forebay", "DirectoryOrCreate"),
    }


def test_one_node_is_updated_at_a_time(plain):
    spec = one(plain, "DaemonSet")["spec"]
    assert spec["updateStrategy"] == {
        "type": "RollingUpdate",
        "rollingUpdate": {"maxUnavailable": 1},
    }
    assert pod(plain)["terminationGracePeriodSeconds"] >= 10
    assert pod(plain)["priorityClassName"] == "forebay"
    assert one(plain, "PriorityClass")["globalDefault"] is False


def test_other_configuration_is_another_pod(plain, render):
    def digest(documents: Documents) -> str:
        template = one(documents, "DaemonSet")["spec"]["template"]
        return str(template["metadata"]["annotations"]["checksum/config"])

    assert digest(render()) == digest(plain)
    assert digest(render("--set", "config.daemon.memory=8GiB")) != digest(plain)


def test_services_and_probes_reach_their_ports(plain, full):
    assert [d["metadata"]["name"] for d in plain if d["kind"] == "Service"] == ["forebay"]
    for documents, scheme in [(plain, "HTTP"), (full, "HTTPS")]:
        (daemon,) = pod(documents)["containers"]
        ports = {port["name"]: port["containerPort"] for port in daemon["ports"]}
        for probe, path in [
            ("startup", "healthz"),
            ("liveness", "healthz"),
            ("readiness", "readyz"),
        ]:
            asked = daemon[f"{probe}Probe"]["httpGet"]
            assert asked == {"path": f"/{path}", "port": "http", "scheme": scheme}
        for service in (d for d in documents if d["kind"] == "Service"):
            assert service["spec"]["clusterIP"] == "None"
            assert service["spec"]["publishNotReadyAddresses"] is True
            labels = one(documents, "DaemonSet")["spec"]["template"]["metadata"]["labels"]
            assert service["spec"]["selector"].items() <= labels.items()
            for port in service["spec"]["ports"]:
                assert ports[port["targetPort"]] == port["port"]


def test_network_is_open_to_peers_and_scrapers(plain, full):
    spec = one(full, "NetworkPolicy")["spec"]
    own = [{"podSelector": {"matchLabels": spec["podSelector"]["matchLabels"]}}]
    assert spec["policyTypes"] == ["Ingress", "Egress"]
    scrapes, peers = spec["ingress"]
    assert [port["port"] for port in scrapes["ports"]] == [9480]
    assert scrapes["from"] == yaml.safe_load(FULL.read_text())["networkPolicy"]["scrapers"]
    assert ([port["port"] for port in peers["ports"]], peers["from"]) == ([9481], own)
    leaves = [([port["port"] for port in rule["ports"]], rule.get("to")) for rule in spec["egress"]]
    assert leaves == [([53, 53], None), ([443, 9000], None), ([9481], own)]
    assert len(one(plain, "NetworkPolicy")["spec"]["ingress"]) == 1


def test_alerts_are_those_of_the_repository(full):
    rule = one(full, "PrometheusRule")
    assert rule["spec"] == yaml.safe_load(RULES.read_text())
    assert rule["metadata"]["labels"]["release"] == "prometheus"


def test_package_holds_the_linked_files(helm, full, tmp_path):
    """Alerts and profile are links to the repository's own files."""
    told = subprocess.run([helm, "package", CHART, "-d", tmp_path], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    (package,) = tmp_path.glob("*.tgz")
    command = [helm, "template", "forebay", package, "--namespace", "ml", "--values", FULL]
    told = subprocess.run(command, capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    assert [d for d in yaml.safe_load_all(told.stdout) if d] == full


def test_scrapes_keep_the_names_of_jobs(full):
    spec = one(full, "ServiceMonitor")["spec"]
    (endpoint,) = spec["endpoints"]
    assert (endpoint["honorLabels"], endpoint["path"]) == (True, "/metrics")
    assert endpoint["authorization"]["credentials"] == {"name": "forebay-token", "key": "token"}
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"]["serverName"] == "forebay.ml.svc"
    # Alerts ask for `up{job="forebay"}`, and name nodes by `instance`.
    assert 'up{job="forebay"}' in RULES.read_text()
    assert {"targetLabel": "job", "replacement": "forebay"} in endpoint["relabelings"]
    service = one(full, "Service")["metadata"]["labels"]
    assert spec["selector"]["matchLabels"].items() <= service.items()
    peers = one(full, "Service", "forebay-peers")["metadata"]["labels"]
    assert not spec["selector"]["matchLabels"].items() <= peers.items()


def check(forebay: str, path: Path) -> list[str]:
    """Return the mistakes of a configuration."""
    told = subprocess.run([forebay, "config", "check", path], capture_output=True, text=True)
    return (told.stdout + told.stderr).splitlines() if told.returncode else []


def test_forebay_accepts_the_configuration(forebay, plain, tmp_path):
    path = tmp_path / "forebay.yaml"
    text = one(plain, "ConfigMap")["data"]["forebay.yaml"]
    path.write_text(text)
    assert check(forebay, path) == []
    path.write_text(text.replace("capacity", "capacty"))
    assert any("capacty" in line for line in check(forebay, path))


def test_forebay_accepts_the_file_of_a_node(forebay, full, authority, tmp_path):
    (tmp_path / "forebay.yaml").write_text(one(full, "ConfigMap")["data"]["forebay.yaml"])
    container = step(full, "node-file")
    script = container["args"][0].replace("/template", str(tmp_path))
    script = script.replace("/etc/forebay/", f"{tmp_path}/node-")
    environment = {**os.environ, "NODE_NAME": "gpu-1", "POD_IP": "10.1.2.3"}
    subprocess.run([*container["command"], script], env=environment, check=True)
    made = tmp_path / "node-forebay.yaml"
    cluster = yaml.safe_load(made.read_text())["cluster"]
    assert (cluster["name"], cluster["address"]) == ("gpu-1", "10.1.2.3:9481")
    assert cluster["members"] == {"dns": "forebay-peers.ml.svc", "port": 9481}
    # Files of Secrets, which the kubelet mounts.
    token = tmp_path / "token"
    token.write_text("0" * 64)
    token.chmod(0o600)
    text = made.read_text()
    for there, here in [
        ("/etc/forebay-peers/gpu-1/", f"{authority}/"),
        ("/etc/forebay-api/", f"{authority}/"),
        ("/etc/forebay-token/", f"{tmp_path}/"),
    ]:
        assert there in text
        text = text.replace(there, here)
    made.write_text(text)
    assert check(forebay, made) == []


def test_folders_are_given_by_the_right_to_give_alone(full, tmp_path):
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root: run the tests as root")
    container = step(full, "own-folders")
    script, name, *folders = container["args"]
    mounts = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert (
        set(folders)
        == mounts
        == {
            "/var/lib/forebay",
            "/run/forebay-tenants",
            "/cache/nvme0",
            "/cache/hdd",
        }
    )
    held = [tmp_path / "fresh", tmp_path / "used"]
    for folder in held:
        folder.mkdir()
    right = ["setpriv", "--bounding-set=-all,+chown", "--inh-caps=-all", "--no-new-privs"]
    command = [*right, *container["command"], script, name, *map(str, held)]
    subprocess.run(command, check=True)
    subprocess.run(command, check=True)
    for folder in held:
        found = folder.stat()
        assert (found.st_uid, found.st_gid, found.st_mode & 0o777) == (64980, 64980, 0o700)


def test_profile_is_put_where_the_kubelet_looks(full, tmp_path):
    container = step(full, "install-seccomp")
    script, *arguments = container["args"]
    assert arguments == ["install-seccomp", "forebay/forebay.json"]
    (tmp_path / "seccomp.json").write_text("{}")
    script = script.replace("/profile", str(tmp_path)).replace("/kubelet", str(tmp_path))
    subprocess.run([*container["command"], script, *arguments], check=True)
    assert (tmp_path / "forebay.json").read_text() == "{}"


def test_job_mounts_the_folder_of_its_tenant(full):
    job = yaml.safe_load(JOB.read_text())["spec"]["template"]["spec"]
    listens = yaml.safe_load(one(full, "ConfigMap")["data"]["forebay.yaml"])["listen"]
    listen = next(entry for entry in listens if entry["tenant"] == "vision")
    (volume,) = job["volumes"]
    (container,) = job["containers"]
    (mount,) = container["volumeMounts"]
    assert volume["hostPath"]["path"] == str(Path(listen["path"]).parent)
    (named,) = container["env"]
    assert named["name"] == "FOREBAY_DAEMON"
    socket = f"{mount['mountPath']}/{Path(listen['path']).name}"
    assert named["value"] == f"unix:{socket}"
    assert listen["group"] in job["securityContext"]["supplementalGroups"]
    assert listen["group"] in pod(full)["securityContext"]["supplementalGroups"]


def keys(values: dict[str, Any], above: str = "") -> set[str]:
    """Return the names of values down to the second level."""
    found = set()
    for name, value in values.items():
        if isinstance(value, dict) and value and not above:
            found |= keys(value, f"{name}.")
        else:
            found.add(above + name)
    return found


def test_readme_explains_every_value():
    text = (CHART / "README.md").read_text()
    named = set(re.findall(r"`([\w.]+)`", "\n".join(re.findall(r"^\| (.*?) \|", text, re.M))))
    assert keys(yaml.safe_load((CHART / "values.yaml").read_text())) - named == set()
