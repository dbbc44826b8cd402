"""Rebuilds the trained policies that the README deploys: checkpoints/NAME.safetensors, with its certificate and figure.

python scripts/make_checkpoints.py                  # grid and frozenlake, about 5 minutes on 2 cores
python scripts/make_checkpoints.py grid
"""

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAMES = ("grid", "frozenlake")
FILES = {"policy.safetensors": ".safetensors", "certificate.txt": ".certificate.txt", "value.png": ".png"}
MOST_BYTES = 4_000_000  # of a policy file in a repository


def make(name: str) -> None:
    """One run of the shipped experiment with seed 0; its policy file, certificate and figure are kept."""
    folder = ROOT / "runs" / "checkpoints" / name
    command = [sys.executable, str(ROOT / "scripts" / "run.py"), f"+experiment={name}", f"hydra.run.dir={folder}"]
    subprocess.run(command, check=True, cwd=ROOT)
    size = (folder / "policy.safetensors").stat().st_size
    if size > MOST_BYTES:
        sys.exit(f"{name}: {size:,} bytes, more than {MOST_BYTES:,}; train fewer members or snapshots")
    (ROOT / "checkpoints").mkdir(exist_ok=True)
    for file, ending in FILES.items():
        shutil.copyfile(folder / file, ROOT / "checkpoints" / f"{name}{ending}")
    print(f"checkpoints/{name}.safetensors: {size:,} bytes")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"which of {', '.join(NAMES)}; all by default")
    names = parser.parse_args().names or list(NAMES)
    unknown = sorted(set(names) - set(NAMES))
    if unknown:
        parser.error(f"expected names among {', '.join(NAMES)}; got {', '.join(unknown)}")
    try:
        for name in names:
            make(name)
    except KeyboardInterrupt:
        sys.exit(130)
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode if error.returncode > 0 else 128 - error.returncode)


if __name__ == "__main__":
    main()
