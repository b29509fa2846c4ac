"""Scripts import their neighbours by bare name, as Python does when it runs them."""

import sys
from pathlib import Path

CONTEST = Path(__file__).resolve().parents[1]
EXAMPLES = CONTEST.parents[1] / "examples"
sys.path[:0] = [str(CONTEST), str(EXAMPLES)]
