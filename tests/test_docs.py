"""The documents: what code cites exists, links lead somewhere, and what they name is there."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import s2r_torch
from s2r_torch.families import FAMILIES

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
FRONT = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")]
CODE = [
    path
    for folder in ("s2r_torch", "scripts", "tests", "conf")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".yaml") and path != Path(__file__).resolve()
]

CITED = re.compile(r"\b([\w-]+\.md)\b`?((?:,? (?:and )?(?:section )?(?:[FC]?\d+(?:\.\d+)?\b|[\"'][A-Z][^\"']*[\"']))*)")
PLACE = re.compile(r"[FC]?\d+(?:\.\d+)?\b|[\"'][^\"']*[\"']")
HEADING = re.compile(r"^#+ (.*?)(?: \{#[\w-]+\})?$", re.MULTILINE)
LINK = re.compile(r"(?<!!)\[[^\]]*\]\(([^)\s]+)\)|!\[[^\]]*\]\(([^)\s]+)\)")
CODE_BLOCK = re.compile(r"^```.*?^```|^(?: {4}[^\n]*\n)+|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def one_line(text: str) -> str:
    """Text without the line breaks and comment signs that may stand within a citation."""
    return re.sub(r"\s*\n[\s#]*", " ", text)


def citations() -> Iterator[tuple[str, str, str]]:
    """(who cites, document, place or nothing), for every document that code mentions."""
    for path in CODE:
        for document, places in CITED.findall(one_line(path.read_text())):
            who = str(path.relative_to(ROOT))
            found = PLACE.findall(places)
            yield from ((who, document, place.strip("\"'")) for place in found or [""])


def headings(path: Path) -> list[str]:
    return HEADING.findall(CODE_BLOCK.sub("", path.read_text()))


def places(path: Path) -> set[str]:
    """What a citation may name: headings, without their number or not, and that number alone."""
    parts = [title.partition(" ") for title in headings(path)]
    return {"", *headings(path), *(last for _, _, last in parts), *(first.rstrip(".") for first, _, _ in parts)}


def anchors(path: Path) -> set[str]:
    """What a link may lead to within a page."""
    given = re.findall(r"\{#([\w-]+)\}", path.read_text())
    return {*given, *(re.sub(r"[\s]+", "-", re.sub(r"[^\w\s-]", "", t).strip().lower()) for t in headings(path))}


def test_every_document_and_section_that_code_cites_exists():
    cited = sorted(set(citations()))
    assert len(cited) > 100  # the pattern still finds them
    missing = []
    for who, document, place in cited:
        page = next((p for p in (DOCS / document, ROOT / document) if p.exists()), None)
        if page is None or place not in places(page):
            missing.append(f"{who}: {document} {place}")
    assert not missing, missing


@pytest.mark.parametrize(("text", "found"), [
    ("(theory.md 2.3, 2.6)", ["2.3", "2.6"]),
    ("theory.md F4, C3", ["F4", "C3"]),
    ("theory.md section 6, here", ["6"]),
    ("(density.md, \"Bounded X\")", ['"Bounded X"']),
    ("theory.md\n    # 3.3", ["3.3"]),
    ("theory.md 5.2). In 3 cells", ["5.2"]),
])  # fmt: skip
def test_citations_are_read(text, found):
    ((_, cited),) = CITED.findall(one_line(text))
    assert PLACE.findall(cited) == found


@pytest.mark.slow
def test_the_erratum_says_how_many_tests_its_command_runs():
    command, passed, left_out = re.search(
        r"\$ pytest -n 0 (.*?)\n +(\d+) passed, (\d+) deselected", (DOCS / "erratum.md").read_text(), re.DOTALL
    ).groups()
    asked = [sys.executable, "-m", "pytest", "--collect-only", "-n", "0", *command.replace("\\", "").split()]
    found = subprocess.run(asked, cwd=ROOT, capture_output=True, text=True).stdout
    assert f"{passed}/{int(passed) + int(left_out)} tests collected ({left_out} deselected)" in found, found[-300:]


@pytest.mark.parametrize("page", [*PAGES, *FRONT], ids=lambda p: str(p.relative_to(ROOT)))
def test_relative_links_lead_somewhere(page):
    for link in (a or b for a, b in LINK.findall(CODE_BLOCK.sub("", page.read_text()))):
        if link.startswith(("http:", "https:")):
            continue
        target, _, anchor = link.partition("#")
        other = (page.parent / target).resolve() if target else page
        assert other.exists(), f"{page.name}: {link}"
        assert not anchor or anchor in anchors(other), f"{page.name}: {link}"


def rows(page: Path) -> list[list[str]]:
    """Cells of all table rows."""
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in page.read_text().splitlines()
        if line.startswith("|") and not set(line) <= set("|-: ")
    ]


def named(cell: str) -> list[str]:
    return re.findall(r"`([^`]*)`", cell)


def resolve(name: str) -> object:
    """What a dotted name inside s2r_torch is: a module, or an attribute of one."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(["s2r_torch", *parts[:cut]]))
        except ModuleNotFoundError:
            continue
        for attribute in parts[cut:]:
            found = getattr(found, attribute)
        return found
    raise AssertionError(f"no module of {name}")


def functions_of(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_the_paper_line_by_line_names_what_is_there():
    first = [row for row in rows(DOCS / "paper.md") if len(row) == 3 and row[0] != "paper"]
    assert len(first) > 20
    for _, functions, tests in first:
        assert named(functions)
        for name in named(functions):
            assert resolve(name) is not None
        for name in (n for n in named(tests) if n.startswith("test") or "/" in n):
            file, _, function = name.partition("::")
            assert (ROOT / "tests" / file).exists(), name
            assert not function or function in functions_of(ROOT / "tests" / file), name


def test_every_test_that_the_erratum_names_exists():
    every = set().union(*(functions_of(path) for path in (ROOT / "tests").rglob("test_*.py")))
    asked = {n for row in rows(DOCS / "erratum.md") for n in named(row[-1]) if n.startswith("test_")}
    assert len(asked) > 10 and asked <= every, asked - every


@pytest.mark.parametrize("page", [*PAGES, *FRONT], ids=lambda p: str(p.relative_to(ROOT)))
def test_files_and_scripts_that_pages_name_exist(page):
    text = page.read_text()
    for script in re.findall(r"(?<![\w/])scripts/(?!test_)\w+\.py\b", text):
        assert (ROOT / script).exists() or script == "scripts/bench_NAME.py", script
    for path in re.findall(r"`((?:tests|checkpoints)/[\w./]+)(?:::\w+)?`", text):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"`((?:predictors|density|families|learning|deployment|files)/(?!test_)[\w/]+\.py)`", text):
        assert (ROOT / "s2r_torch" / path).exists(), path


def test_the_families_of_own_world_md_are_families(monkeypatch):
    """The block runs as it stands, and its simulators pay and show what the page says."""
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "own-world.md").read_text(), re.DOTALL)
    (code,) = (block for block in blocks if "class LineFamily" in block)
    monkeypatch.setattr(FAMILIES, "_known", dict(FAMILIES._known))
    there: dict = {}
    exec(code, there)
    family = there["LineFamily"]()
    theta = torch.tensor([[0.1, 1.0], [0.2, 0.0]], dtype=torch.float64)
    simulators = family.simulators(theta, [0, 1])
    x = simulators.reset(50, [torch.Generator().manual_seed(b) for b in (0, 1)])
    assert float((x[0] - 0.1).abs().max()) <= 0.7 and float((x[1] - 0.2).abs().max()) <= 0.2
    for _ in range(3):
        _, reward = simulators.step(torch.ones(2, 50, dtype=torch.int64))
    assert reward.tolist() == [[1.0] * 50, [0.0] * 50]  # the right end pays w
    (code,) = (block for block in blocks if "def rail" in block)
    exec(code, there)
    assert there["rail"]().spec.max_states_per_layer == 3 and "rail" in FAMILIES


def test_one_version():
    cited = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert cited[1] == newest[1] == s2r_torch.__version__


def test_the_readme_is_short_and_its_first_command_runs_the_main_job():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 150
    commands = [line for line in lines if line.startswith("    python3 -m venv")]
    assert [c.rpartition("&& ")[2].split()[0] for c in commands] == [
        ".venv/bin/python", ".venv/bin/pytest", ".venv/bin/python",
    ]  # fmt: skip
    assert commands[0].endswith("scripts/run.py +experiment=grid") and "deploy.py" in commands[2]
