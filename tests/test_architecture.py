"""The layout is the method: imports go one way, heavy libraries stay in one place, and importing changes nothing."""

import ast
import functools
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "s2r_torch"

# Lowest layer first; a module imports from its own line or from lines above it (docs/architecture.md).
LAYERS = (
    (
        "arrays",
        "base",
        "graph",
        "errors",
        "rng",
        "registry",
        "text",
        "progress",
        "schema",
        "defaults",
        "given",
        "plain",
        "held",
        "libraries",
        "memory",
        "signals",
        "files",
    ),
    ("density", "coverage", "student", "episodes", "tours", "planner", "problem", "workers"),
    ("encoders",),
    ("families",),
    ("predictors",),
    ("learning", "deployment"),
    ("assurance",),
    ("comparators",),
    ("runs",),
    ("reports",),
    ("commands",),
)
SIBLINGS = (("learning", "deployment"),)  # simulators | reality: neither ever imports the other
LEVEL = {name: level for level, names in enumerate(LAYERS) for name in names}

# Only these may import these; hydra belongs to commands alone.
HOMES = {
    "hydra": {"commands/configuration.py"},
    "omegaconf": {f"commands/{path.name}" for path in (PACKAGE / "commands").glob("*.py")},
    "lightning": {f"predictors/training/{name}.py" for name in ("layer_fit", "trainer")},
    "joblib": {"workers/processes.py"},
    "ray": {"workers/cluster.py"},
    "gymnasium": {"families/gym/family.py", "families/gym/actions.py"},
    "safetensors": {"files/tensors.py"},
    "matplotlib": {f"reports/{path.name}" for path in (PACKAGE / "reports").glob("*.py")},
    "pyarrow": {"deployment/recording/parquet_files.py"},
    "sklearn": {"families/digits.py"},
    "cryptography": {"deployment/signature.py"},
    "onnx": set(),  # torch.onnx needs it, and says so
}


@functools.cache
def modules() -> list[Path]:
    return sorted(p for p in PACKAGE.rglob("*.py") if p != PACKAGE / "__init__.py")


@functools.cache
def imports(path: Path) -> list[str]:
    """What a module imports when it runs, also inside functions; `from s2r_torch import X` gives s2r_torch.X."""
    tree, names = ast.parse(path.read_text()), []
    types_only = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    for node in ast.walk(tree):
        if id(node) in types_only:
            continue
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            inside = [f"{node.module}.{alias.name}" for alias in node.names]
            modules_in = [name for name in inside if is_module(name)]
            names += modules_in if len(modules_in) == len(inside) else [node.module, *modules_in]
    return names


@functools.cache
def is_module(name: str) -> bool:
    """Whether a dotted name is a module or a package of ours."""
    place = ROOT / Path(*name.split("."))
    return place.is_dir() or place.with_suffix(".py").exists()


def part(path: Path) -> str:
    """The line of the layout that a module belongs to: its package, or itself."""
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", modules(), ids=lambda p: str(p.relative_to(PACKAGE)))
def test_imports_go_one_way(path):
    mine = part(path)
    assert mine in LEVEL, f"{mine} is not in the layout; give it a line"
    for name in imports(path):
        if name.startswith("s2r_torch."):
            theirs = name.split(".")[1]
            assert LEVEL[theirs] <= LEVEL[mine], (
                f"{mine} (layer {LEVEL[mine]}) imports {theirs} (layer {LEVEL[theirs]})"
            )


def test_no_import_cycles():
    """Module by module: no chain of imports leads back."""
    graph = {}
    for path in modules():
        name = "s2r_torch." + ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        name = name.removesuffix(".__init__")
        graph[name] = set(imports(path)) - {name}
    done, open_ = set(), []

    def visit(name):
        assert name not in open_, f"import cycle: {' -> '.join(open_ + [name])}"
        if name in done or name not in graph:
            return
        open_.append(name)
        for other in sorted(graph[name]):
            visit(other)
        open_.pop()
        done.add(name)

    for name in sorted(graph):
        visit(name)


@pytest.mark.parametrize("siblings", SIBLINGS, ids=" | ".join)
def test_simulators_and_reality_never_import_each_other(siblings):
    for path in modules():
        if part(path) in siblings:
            theirs = {name.split(".")[1] for name in imports(path) if name.startswith("s2r_torch.")}
            assert not theirs & (set(siblings) - {part(path)}), path


def test_algorithms_never_import_families():
    """Algorithms know protocols only; what judges and compares them may name families."""
    allowed = {"families", "comparators", "runs", "commands"}
    for path in modules():
        if part(path) not in allowed:
            assert not [n for n in imports(path) if n.startswith("s2r_torch.families")], path


@pytest.mark.parametrize("library", HOMES)
def test_heavy_libraries_have_one_home(library):
    users = {str(p.relative_to(PACKAGE)) for p in modules() for n in imports(p) if n.split(".")[0] == library}
    assert users <= HOMES[library]


def test_the_front_door_leads_to_all_that_a_user_needs_and_to_no_heavy_library():
    code = """
import sys
import s2r_torch
wanted = "execute make_family check_family register_family register_net deploy load_policy write_reports"
assert set(wanted.split()) <= set(s2r_torch.__all__) <= set(dir(s2r_torch))
for name in s2r_torch.__all__:
    assert callable(getattr(s2r_torch, name)), name
heavy = {"hydra", "omegaconf", "lightning", "gymnasium", "ray"} & set(sys.modules)
assert not heavy, f"imported {heavy}"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_import_is_light_and_has_no_side_effect():
    code = """
import sys, random, numpy, torch
before = (torch.get_rng_state().clone(), torch.get_default_dtype(), torch.get_num_threads(), random.getstate())
import s2r_torch
after = (torch.get_rng_state(), torch.get_default_dtype(), torch.get_num_threads(), random.getstate())
assert torch.equal(before[0], after[0]) and before[1:] == after[1:], "global state changed"
heavy = {"hydra", "omegaconf", "lightning", "gymnasium", "matplotlib", "rich"} & set(sys.modules)
assert not heavy, f"imported {heavy}"
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
