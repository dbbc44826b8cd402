"""docs/own-world.md, as a reader follows it: its files are written, its commands run, its words are the check's."""

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from support.optional import needs
from support.smoke import ROOT
from test_docs import rows

from s2r_torch.families import check, make_family

PAGE = ROOT / "docs" / "own-world.md"
TEXT = PAGE.read_text()
FILES = dict(re.findall(r"^```python\n# (\w+\.py)\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))
LINES = re.findall(r"^ {4}((?:s2r-|pytest |python ).*)$", TEXT.replace("\\\n", " "), re.MULTILINE)
QUOTED = re.findall(r"^```text\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL)
OPTIONAL = "digit_lock"  # needs scikit-learn


def plain(text: str) -> str:
    """Words alone, without table lines and line breaks; figures may differ from machine to machine."""
    return re.sub(r"\d", "0", " ".join(re.sub(r"[│┃`]", " ", text).split()))


def ran(line: str, folder: Path) -> str:
    """What a command of the page prints; it ends with the code that the page says, 0 by default."""
    said = re.search(r"# exit code (\d)$", line)
    name, *arguments = shlex.split(line, comments=True)
    if name.startswith("s2r-"):
        script = {"new": "new_family"}.get(name[4:], name[4:])
        command = [sys.executable, str(ROOT / "scripts" / f"{script}.py"), *arguments]
    else:
        module = ["-m", "pytest", "-p", "no:cacheprovider"] if name == "pytest" else []
        command = [sys.executable, *module, *arguments]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "COLUMNS": "200"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True)
    assert done.returncode == int(said[1] if said else 0), f"{line}\n{done.stdout}{done.stderr}"
    return plain(done.stdout)


@pytest.fixture
def folder(tmp_path):
    """An empty folder with the files that the page shows."""
    for name, code in FILES.items():
        (tmp_path / name).write_text(code)
    return tmp_path


@pytest.mark.slow
def test_every_command_of_the_page_in_its_order(folder):
    assert set(FILES) == {"robot.py", "act.py", "rail.py", "skewed.py", "line.py", f"{OPTIONAL}.py"}
    told = {line: ran(line, folder) for line in LINES if OPTIONAL not in line}
    assert len(told) == len(LINES) - 1 >= 14
    (refused,) = (text for line, text in told.items() if "# exit code 2" in line)
    assert all(plain(line) in refused for line in QUOTED[0].splitlines())
    assert told["python act.py"] == plain("the cart ends at 3") and "# act.py" in TEXT
    for line in (
        "s2r-check env=my_robot",
        "s2r-check env=rail env.offset=0.3",
        "s2r-check env=skewed",
        "s2r-check env=line env.offset=0.3",
    ):
        assert "refused" not in told[line] and "note" not in told[line]
    assert sum("consistent" in text and "CERTIFICATE" in text for text in told.values()) == 3
    assert (folder / "robot.pt2").exists() and (folder / "plan.csv").exists()


@pytest.mark.slow
def test_the_negative_control_is_told_in_these_words(folder):
    needs("digits")
    (line,) = (line for line in LINES if OPTIONAL in line)
    told = ran(line, folder)
    assert all(plain(line) in told for line in QUOTED[1].splitlines())


def constants() -> str:
    """Every text of the checks; parts that are put in are left out."""
    trees = [ast.parse(path.read_text()) for path in Path(check.__file__).parent.glob("*.py")]
    texts = [n.value for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Constant) and type(n.value) is str]
    return plain(" | ".join(texts))


def test_the_table_has_the_checks_own_causes_and_misses_no_check():
    table = [row for row in rows(PAGE) if len(row) == 4 and row[0] != "looked at"]
    words = constants()
    assert len(table) >= 30
    for looked_at, _, cause, _ in table:
        assert plain(looked_at) in words, looked_at
        assert all(plain(part) in words for part in cause.split("...")), cause
    told = {finding.checked for finding in check.check_family(make_family("grid")).findings}
    assert told <= {row[0] for row in table}
