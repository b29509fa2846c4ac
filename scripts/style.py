"""Check the words and sizes that no compiler and no linter checks, and print the figures.

Every limit is a constant below with its reason; a finding names file, line and limit.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

# A comment that opens with a relative clause has to be read twice; a few are hard to avoid.
RELATIVE_SHARE_MAX = 0.05
RELATIVE = re.compile(
    r"(what|who|whom|whose|whether|whatever|whoever|how|its|of|where|when|which|why|that)\b", re.I
)
# The width that rustfmt and ruff hold code to.
PROSE_COLUMNS_MAX = 100
# A name is read in a list of failed tests: one line of a terminal beside the file's name.
TEST_NAME_MAX = 60
# A file is read as a whole, from its header to its end.
FILE_LINES_MAX = 700

RUST_DOC = re.compile(r"\s*//[/!] ?(.*)")
RUST_COMMENT = re.compile(r"\s*//")
RUST_TEST = re.compile(r"\s*#\[(tokio::)?test\b")
RUST_FUNCTION = re.compile(r"\s*(?:pub(?:\([^)]*\))? )?(?:async )?fn (\w+)")
RUST_TEST_MODULE = re.compile(r"^(?:#\[cfg\(test\)\]|mod tests \{)")
MARKDOWN_LINK = re.compile(r"\]\(([^)\s]+)\)")
MARKDOWN_FENCE = re.compile(r"\s*```\w*\s*")
MARKDOWN_HEADING = re.compile(r"#+ (.*)")
# A source file named in the documents by its path from the root.
NAMED_FILE = re.compile(r"`((?:[\w-]+/)+[\w-]+\.(?:rs|py|sh|cu|toml))`")
# Decisions describe the tree of their day.
HISTORY = "docs/decisions/"
# A word that no line break can shorten: a URL, a link's target, a long path.
UNBREAKABLE = re.compile(rf"\S{{{PROSE_COLUMNS_MAX // 2},}}")


@dataclass
class Figures:
    """Counts of a tree, and the findings that fail the check."""

    docs: int = 0
    relative: list[str] = field(default_factory=list)
    wide: list[str] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    files: list[str] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    fences: list[str] = field(default_factory=list)

    def doc(self, place: str, text: str) -> None:
        """Count a doc comment by its first line."""
        self.docs += 1
        if RELATIVE.match(text.lstrip("*`_ ")):
            self.relative.append(f"{place}: opens with a relative word: {text.strip()[:60]}")

    def prose(self, place: str, line: str) -> None:
        """Check the width of a line of prose."""
        if len(line) > PROSE_COLUMNS_MAX and not UNBREAKABLE.search(line):
            self.wide.append(f"{place}: {len(line)} columns; {PROSE_COLUMNS_MAX} are allowed")

    def test_name(self, place: str, name: str) -> None:
        """Check the length of a test's name."""
        if len(name) > TEST_NAME_MAX:
            self.names.append(f"{place}: {name}: {len(name)} characters; {TEST_NAME_MAX} allowed")

    def length(self, path: str, lines: int) -> None:
        """Check the length of a file without its tests."""
        if lines > FILE_LINES_MAX:
            self.files.append(f"{path}: {lines} lines without tests; {FILE_LINES_MAX} are allowed")


def rust(path: str, text: str, figures: Figures) -> None:
    """Measure a Rust file: tables and code of doc comments are no prose."""
    in_doc = is_test = in_code = False
    lines = text.splitlines()
    own = len(lines)
    for number, line in enumerate(lines, 1):
        place = f"{path}:{number}"
        doc = RUST_DOC.match(line)
        body = doc[1] if doc else ""
        if body.startswith("```"):
            in_code = not in_code
        if RUST_COMMENT.match(line) and not (in_code or body.startswith("|")):
            figures.prose(place, line)
        if doc and not in_doc and doc[1].strip():
            figures.doc(place, doc[1])
        in_doc = bool(doc)
        if RUST_TEST.match(line):
            is_test = True
        function = RUST_FUNCTION.match(line)
        if function and is_test:
            figures.test_name(place, function[1])
            is_test = False
        if RUST_TEST_MODULE.match(line):
            own = min(own, number - 1)
    if not _is_test(path):
        figures.length(path, own)


def python(path: str, text: str, figures: Figures) -> None:
    """Measure a Python file; ruff checks the width of its lines."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name[:5] == "test_":
            figures.test_name(f"{path}:{node.lineno}", node.name)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            doc = ast.get_docstring(node)
            if doc:
                figures.doc(f"{path}:{getattr(node, 'lineno', 1)}", doc.splitlines()[0])
    if not _is_test(path):
        figures.length(path, len(text.splitlines()))


def markdown(path: str, text: str, figures: Figures) -> None:
    """Measure a page: tables and code are no prose."""
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        place = f"{path}:{number}"
        if MARKDOWN_FENCE.fullmatch(line):
            in_code = not in_code
        elif "```" in line:
            figures.fences.append(f"{place}: a fence of code that is not alone in its line")
        elif not in_code and not line.lstrip().startswith("|") and not line.startswith("    "):
            figures.prose(place, line)
    if in_code:
        figures.fences.append(f"{path}: the last block of code is not closed")


def headings(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found = set()
    for heading in MARKDOWN_HEADING.findall(text):
        plain = re.sub(r"[^\w\- ]", "", heading.lower())
        found.add(plain.strip().replace(" ", "-"))
    return found


def links(root: Path, path: str, figures: Figures) -> None:
    """Check that the files and headings that a page names exist."""
    page = root / path
    for number, line in enumerate(page.read_text().splitlines(), 1):
        for link in MARKDOWN_LINK.findall(line):
            if re.match(r"[a-z]+:", link):
                continue
            name, _, anchor = link.partition("#")
            target = (page.parent / name).resolve() if name else page
            if not target.exists():
                figures.links.append(f"{path}:{number}: no such file: {link}")
            elif anchor and anchor not in headings(target.read_text()):
                figures.links.append(f"{path}:{number}: no such heading: {link}")
        if path.startswith("docs/") and not path.startswith(HISTORY):
            for name in NAMED_FILE.findall(line):
                if not (root / name).exists():
                    figures.links.append(f"{path}:{number}: no such file: {name}")


def _is_test(path: str) -> bool:
    return path.startswith("tests/") or "/tests/" in path or path.endswith("/tests.rs")


# Index of the documentation for machines, by https://llmstxt.org.
INDEX = "llms.txt"

MEASURES = {".rs": rust, ".py": python, ".md": markdown}


def tracked(root: Path) -> Iterator[str]:
    """Yield the paths that git tracks, and new ones that it does not ignore."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    for path in subprocess.check_output(command, cwd=root, text=True).splitlines():
        if (root / path).is_file():
            yield path


def measure(root: Path) -> Figures:
    """Measure the tree at `root`."""
    figures = Figures()
    for path in tracked(root):
        if rule := MEASURES.get(Path(path).suffix):
            rule(path, (root / path).read_text(), figures)
        if path.endswith(".md") or Path(path).name == INDEX:
            links(root, path, figures)
    return figures


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).resolve().parents[1])
    parser.add_argument("--all", action="store_true", help="print every finding")
    arguments = parser.parse_args()
    figures = measure(arguments.root)
    share = len(figures.relative) / max(figures.docs, 1)
    rows = [
        (
            "doc comments that open with a relative word",
            f"{share:.1%} of {figures.docs}",
            f"{RELATIVE_SHARE_MAX:.0%}",
            figures.relative if share > RELATIVE_SHARE_MAX else [],
        ),
        (f"lines of prose over {PROSE_COLUMNS_MAX} columns", len(figures.wide), 0, figures.wide),
        (f"test names over {TEST_NAME_MAX} characters", len(figures.names), 0, figures.names),
        (f"files over {FILE_LINES_MAX} lines", len(figures.files), 0, figures.files),
        ("broken links and paths in documents", len(figures.links), 0, figures.links),
        ("broken blocks of code in documents", len(figures.fences), 0, figures.fences),
    ]
    for name, seen, limit, _ in rows:
        print(f"{name:46} {seen!s:>16}   limit {limit}")
    failed = False
    for _, _, _, findings in rows:
        failed = failed or bool(findings)
        shown = findings if arguments.all else findings[:20]
        for finding in shown:
            print(f"  {finding}")
        if len(shown) < len(findings):
            print(f"  … {len(findings) - len(shown)} more: scripts/style.py --all")
    if arguments.all and share <= RELATIVE_SHARE_MAX:
        print("\n".join(f"  allowed: {finding}" for finding in figures.relative))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
