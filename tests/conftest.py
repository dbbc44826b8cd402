"""Settings of the whole suite; read before any test module imports torch."""

import os
import signal

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # started in the background of a shell
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests, and the scripts that they start, are interrupted

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads must not spin on a shared machine

import torch  # noqa: E402

torch.set_num_threads(1)  # two workers (pytest -n 2) on two cores

collect_ignore = ["support/strip.py"]  # registers a family: doctests would import it twice, by two names
