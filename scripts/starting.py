"""Before all other imports of a script: Ctrl-C and SIGTERM end it well from the first moment on.

While libraries are imported nothing is open and nothing is lost, so a signal ends the process at once; then
`s2r_torch.reports.endings` takes over. It knows the standard library alone.
"""

import os
import signal

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch: spinning threads fight over shared cores


def _end(number: int, frame: object) -> None:
    os.write(2, b"interrupted\n")
    os._exit(130 if number == signal.SIGINT else 143)


def end_on_signals() -> None:
    """A signal that the process was started to ignore stays ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _end)
