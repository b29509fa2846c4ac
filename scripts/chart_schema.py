"""Write the parts of the chart's values schema that come from the configuration's own schema.

Rule: `$defs` of deploy/helm/forebay/values.schema.json is that of `forebay config schema`; all else
in that file is written by hand.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

SCHEMA = Path(__file__).resolve().parents[1] / "deploy/helm/forebay/values.schema.json"


def renewed(configuration: str) -> str:
    """Return the text of the values schema with the definitions of the configuration's schema."""
    values = json.loads(SCHEMA.read_text())
    values["$defs"] = json.loads(configuration)["$defs"]
    return json.dumps(values, indent=2) + "\n"


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--forebay", default="forebay", help="the command to ask")
    parser.add_argument("--check", action="store_true", help="compare, and write nothing")
    arguments = parser.parse_args()
    command = [arguments.forebay, "config", "schema"]
    text = renewed(subprocess.check_output(command, text=True))
    if arguments.check:
        return int(SCHEMA.read_text() != text)
    SCHEMA.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
