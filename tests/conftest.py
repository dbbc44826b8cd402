"""Settings of the whole suite; read before any test module imports torch."""

import os
import signal

# where the suite was started in the background, tests and the scripts that they start are still to hear signals
for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # idle threads must not spin on a shared machine

import torch  # noqa: E402

torch.set_num_threads(1)  # two workers (pytest -n 2) on two cores

collect_ignore = ["support/strip.py"]  # registers a family: doctests would import it twice, by two names
