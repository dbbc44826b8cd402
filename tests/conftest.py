"""Settings of the whole suite; read before any test module imports torch."""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads must not spin on a shared machine

import torch  # noqa: E402

torch.set_num_threads(1)  # two workers (pytest -n 2) on two cores

collect_ignore = ["support/strip.py"]  # registers a family: doctests would import it twice, by two names
