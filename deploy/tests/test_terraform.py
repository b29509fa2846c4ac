"""The Terraform module, as Terraform's formatter and a parser of its language read it."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parent.parent
MODULE = DEPLOY / "terraform/aws-gpu-pool"
FILES = sorted(MODULE.glob("*.tf"))

PARSE = "import hcl2, json, sys; print(json.dumps(hcl2.load(open(sys.argv[1]))))"


def parsed(schemas: Path, path: Path) -> dict[str, Any]:
    """Return a file as the parser reads it."""
    told = subprocess.run([schemas, "-c", PARSE, path], capture_output=True, text=True)
    assert told.returncode == 0, told.stderr
    found: dict[str, Any] = json.loads(told.stdout)
    return found


def names(blocks: list[dict[str, Any]]) -> set[str]:
    """Return the labels of blocks, which some releases of the parser leave quoted."""
    return {label.strip('"') for block in blocks for label in block if not label.startswith("__")}


def test_parser_reads_every_file(schemas):
    assert [path.name for path in FILES] == ["main.tf", "outputs.tf", "variables.tf", "versions.tf"]
    for path in FILES:
        assert parsed(schemas, path)


def test_parser_rejects_a_broken_file(schemas, tmp_path):
    broken = tmp_path / "broken.tf"
    broken.write_text((MODULE / "main.tf").read_text().replace("{", "", 1))
    told = subprocess.run([schemas, "-c", PARSE, broken], capture_output=True, text=True)
    assert told.returncode != 0


def test_variables_are_declared_and_used(schemas):
    declared = names(parsed(schemas, MODULE / "variables.tf")["variable"])
    used = set(re.findall(r"\bvar\.(\w+)", (MODULE / "main.tf").read_text()))
    assert used == declared
    # The example of the README gives every variable that has no default.
    example = set(re.findall(r"^  (\w+) +=", (MODULE / "README.md").read_text(), re.M))
    needed = {
        name.strip('"')
        for block in parsed(schemas, MODULE / "variables.tf")["variable"]
        for name, variable in block.items()
        if not name.startswith("__") and "default" not in variable
    }
    assert needed <= example <= declared | {"source"}


def test_values_are_the_charts():
    text = (MODULE / "main.tf").read_text()
    chart = re.search(r'"\$\{path\.module\}/([^"]+)"', text)
    assert chart is not None
    values = yaml.safe_load((MODULE / chart[1] / "values.yaml").read_text())
    given = text[text.index("yamlencode({") :]
    assert set(re.findall(r"^    (\w+) *= ", given, re.M)) <= set(values)


def test_formatter_changes_nothing():
    if shutil.which("terraform") is None:
        pytest.skip("needs terraform: its own program, from its makers")
    told = subprocess.run(
        ["terraform", "fmt", "-check", "-diff", MODULE], capture_output=True, text=True
    )
    assert told.returncode == 0, told.stdout
