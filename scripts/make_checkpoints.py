"""Rebuilds the trained policies that the README deploys: checkpoints/NAME.safetensors, with its certificate and figure.

python scripts/make_checkpoints.py                  # grid and frozenlake, about 3 minutes on 2 cores
python scripts/make_checkpoints.py grid
python scripts/make_checkpoints.py --check          # ends with 2 where other code would make them; names the modules

`checkpoints/made.json` holds a digest of every module that a policy file is a function of, by policy. Words are no part
of it: comments, docstrings and layout may change.
"""

import argparse
import ast
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("grid", "frozenlake")
FILES = {"policy.safetensors": ".safetensors", "certificate.txt": ".certificate.txt", "value.png": ".png"}
SCORES = 2000  # of fresh simulators, four times a run's own: a shipped file refuses nearly the stated share of worlds
MOST_BYTES = 5_000_000  # of a policy file in a repository
MADE = ROOT / "checkpoints" / "made.json"
ENTRANCES = (  # with all that they import, these decide what is in a policy file; so do a family, and its experiment
    "learning.sim2real",
    "predictors.training.train",
    "predictors.nets.architectures",
    "assurance.certify",
    "assurance.rehearsal",
    "deployment.policy_file",
    "runs.budgets",
    "runs.judging",
    "runs.training",
)
NO_NUMBERS = (
    "comparators",
    "errors",
    "files",
    "progress",
    "registry",
    "schema",
    "text",
    "workers",
)  # decide none of it


def make(name: str) -> None:
    """One run of the shipped experiment with seed 0; its policy file, certificate and figure are kept."""
    folder = ROOT / "runs" / "checkpoints" / name
    shutil.rmtree(folder, ignore_errors=True)  # of other code
    settings = [f"+experiment={name}", f"certificate.scores={SCORES}", f"hydra.run.dir={folder}"]
    subprocess.run([sys.executable, str(ROOT / "scripts" / "run.py"), *settings], check=True, cwd=ROOT)
    size = (folder / "policy.safetensors").stat().st_size
    if size > MOST_BYTES:
        sys.exit(f"{name}: {size:,} bytes, more than {MOST_BYTES:,}; train fewer members or snapshots")
    (ROOT / "checkpoints").mkdir(exist_ok=True)
    for file, ending in FILES.items():
        shutil.copyfile(folder / file, ROOT / "checkpoints" / f"{name}{ending}")
    write_made({**made(), name: digests(name)})
    print(f"checkpoints/{name}.safetensors: {size:,} bytes")


def made() -> dict[str, dict[str, str]]:
    """What the shipped policies were made by: name -> file -> digest."""
    return json.loads(MADE.read_text()) if MADE.exists() else {}


def write_made(found: dict[str, dict[str, str]]) -> None:
    """Keeps it."""
    MADE.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")


def digests(name: str) -> dict[str, str]:
    """File -> digest of all that the policy is a function of, as it is now."""
    modules: set[Path] = set()
    waiting = [place for entrance in (*ENTRANCES, f"families.{name}") for place in places(f"s2r_torch.{entrance}")]
    while waiting:
        path = waiting.pop()
        if path not in modules:
            modules.add(path)
            waiting += [place for imported in imports(path) for place in places(imported)]
    texts = {path: plain_code(path).encode() for path in modules}
    experiment = ROOT / "conf" / "run" / "experiment" / f"{name}.yaml"
    texts[experiment] = experiment.read_bytes()
    return {
        path.relative_to(ROOT).as_posix(): hashlib.blake2b(text, digest_size=8).hexdigest()
        for path, text in texts.items()
    }


def places(module: str) -> list[Path]:
    """The file of one of our modules, or of the module that the name is a part of."""
    if not module.startswith("s2r_torch.") or module.split(".")[1] in NO_NUMBERS:
        return []
    base = ROOT.joinpath(*module.split("."))
    found = [place for place in (base.with_suffix(".py"), base / "__init__.py") if place.exists()]
    return found or places(module.rpartition(".")[0])


def imports(path: Path) -> list[str]:
    """What a module imports, wherever in it: modules, or names of modules."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            found += [f"{node.module}.{alias.name}" for alias in node.names]
    return found


def plain_code(path: Path) -> str:
    """A module without comments, docstrings and layout."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body = node.body[1:]
    return ast.dump(tree)


def check(name: str) -> list[str]:
    """The files that are not as they were when the policy was made."""
    before, now = made().get(name, {}), digests(name)
    return sorted(file for file in {*before, *now} if before.get(file) != now.get(file))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which of {', '.join(NAMES)}; all by default")
    parser.add_argument("--check", action="store_true", help="make nothing; say what has changed since they were made")
    given = parser.parse_args()
    names = given.names or list(NAMES)
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        parser.error(f"expected names among {', '.join(NAMES)}; got {', '.join(unknown)}")
    if given.check:
        changed = {name: files for name in names if (files := check(name))}
        for name, files in changed.items():
            print(f"checkpoints/{name}.safetensors: {len(files)} files are not those that made it: {', '.join(files)}")
        sys.exit(2 if changed else 0)
    try:
        for name in names:
            make(name)
    except KeyboardInterrupt:
        sys.exit(130)
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode if error.returncode > 0 else 128 - error.returncode)


if __name__ == "__main__":
    main()
