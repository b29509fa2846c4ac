"""The style gate finds each kind of fault, and passes text without one."""

import subprocess
import sys
from pathlib import Path

import pytest

STYLE = Path(__file__).resolve().parents[1] / "style.py"

GOOD_RUST = """//! Open shards of one tier.

/// Returns the owner of a shard.
pub fn owner() {}

#[cfg(test)]
mod tests {
    #[test]
    fn owner_is_stable() {}
}
"""


@pytest.fixture
def check(tmp_path):
    subprocess.run(["git", "init", "--quiet", tmp_path], check=True)

    def run(**files):
        for name, text in files.items():
            path = tmp_path / name.replace("__", "/").replace("_dot_", ".")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        return subprocess.run(
            [sys.executable, STYLE, "--root", tmp_path], capture_output=True, text=True, check=False
        )

    return run


def test_clean_tree_passes(check):
    done = check(
        src__lib_dot_rs=GOOD_RUST,
        src__drawn_dot_rs=f"//! A drawing.\n//! ```text\n//! {'─' * 120}\n//! ```\n",
        README_dot_md="# A page\n\nOne line.\n",
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("lib_dot_rs", "/// Whether it is open.\nfn f() {}\n", "lib.rs:1"),
        ("lib_dot_py", '"""What the module does."""\n', "lib.py:1"),
        ("lib_dot_rs", f"/// A {'long ' * 20}line.\nfn f() {{}}\n", "lib.rs:1"),
        ("page_dot_md", "word " * 25, "page.md:1"),
        ("lib_dot_rs", f"#[test]\nfn {'a' * 61}() {{}}\n", "lib.rs:2"),
        ("test_a_dot_py", f"def test_{'a' * 61}():\n    pass\n", "test_a.py:1"),
        ("lib_dot_rs", "fn f() {}\n" * 701, "lib.rs: 701"),
        ("page_dot_md", "[a](missing.md)\n", "page.md:1"),
        ("llms_dot_txt", "# A\n\n- [a](missing.md): a page\n", "llms.txt:3"),
        ("page_dot_md", "# Here\n\n[a](#there)\n", "page.md:3"),
        ("docs__page_dot_md", "In `cache/src/gone.rs`.\n", "docs/page.md:1"),
        ("page_dot_md", "```sh\nls ```\n", "page.md:2"),
        ("page_dot_md", "```sh\nls\n", "page.md:"),
    ],
    ids=[
        "relative word in Rust",
        "relative word in Python",
        "wide comment",
        "wide prose",
        "long name in Rust",
        "long name in Python",
        "long file",
        "missing file",
        "missing file in the index for machines",
        "missing heading",
        "missing source file",
        "fence behind other text",
        "open block of code",
    ],
)
def test_fault_is_found_at_its_place(check, name, text, place):
    done = check(**{name: text})
    assert done.returncode == 1
    assert place in done.stdout


def test_tests_and_tables_may_be_long(check):
    table = f"| {'word ' * 30} |\n|---|\n"
    module = "#[cfg(test)]\nmod tests {\n" + "    fn f() {}\n" * 701 + "}\n"
    done = check(page_dot_md=table, lib_dot_rs=module, tests__long_dot_rs="fn f() {}\n" * 701)
    assert done.returncode == 0, done.stdout


def test_index_for_machines_names_every_page():
    root = STYLE.parents[1]
    index = (root / "llms.txt").read_text()
    assert index.startswith("# Forebay\n\n> ")
    for page in sorted(root.glob("docs/**/*.md")):
        name = str(page.relative_to(root))
        assert name.startswith("docs/decisions/") or f"]({name})" in index, name
