"""Everything that a user can get wrong, as one small tree of errors.

Every message says what was expected, what came, and the likely cause:

>>> raise RewardError(expected="a reward in [0, 1]", got="1.5", cause="rewards are not scaled")
Traceback (most recent call last):
    ...
s2r_torch.errors.RewardError: expected a reward in [0, 1]; got 1.5; likely cause: rewards are not scaled
"""

from __future__ import annotations


class S2RError(Exception):
    """Base of all errors of this library."""

    def __init__(self, *, expected: str, got: str, cause: str):
        self.expected, self.got, self.cause = expected, got, cause
        super().__init__(f"expected {expected}; got {got}; likely cause: {cause}")

    def __reduce__(self):  # an error of another process is the same one here, its notes included
        given = {"expected": self.expected, "got": self.got, "cause": self.cause}
        return _again, (type(self), given), self.__dict__


class Terminated(KeyboardInterrupt):
    """A signal of a service or a scheduler, such as SIGTERM: like Ctrl-C, but the exit code is 143."""


class SettingError(S2RError, ValueError):
    """A setting is out of range, unknown, or contradicts another one."""


class FolderError(SettingError):
    """A run's folder is of another configuration or version, damaged, or in use; nothing in it was touched."""


class OtherRunError(FolderError):
    """A run's folder is of another configuration or version."""


class AssumptionError(S2RError, ValueError):
    """Settings under which a theorem does not hold; the message names the assumption."""


class ObservationError(S2RError, ValueError):
    """Observations are not finite, have the wrong shape or type, or lie off the density grid."""


class RewardError(S2RError, ValueError):
    """Rewards are not finite, negative, or sum to more than 1 over an episode (theory.md C7)."""


class SimulatorError(S2RError, RuntimeError):
    """A simulator raised or died; the original exception is its `__cause__`."""


class WorkerError(S2RError, RuntimeError):
    """A worker died at the same part again and again; `part` says at which one."""

    def __init__(self, *, expected: str, got: str, cause: str, part: int = 0):
        super().__init__(expected=expected, got=got, cause=cause)
        self.part = part


class ExplorationError(S2RError, RuntimeError):
    """The state graph could not be discovered (Algorithm 2)."""


class AmbiguousMergeError(ExplorationError):
    """Two paths are neither clearly the same state nor clearly different ones; more readings may tell, or may not."""

    def __init__(self, *, expected: str, got: str, cause: str, more_may_tell: bool):
        super().__init__(expected=expected, got=got, cause=cause)
        self.more_may_tell = more_may_tell


class UnlikeSimulatorsError(S2RError, RuntimeError):
    """A world is not like the simulators that the policy was trained on; nothing holds there."""


class GraphMismatchError(ExplorationError):
    """Two explorations disagree about the state graph, which all environments share."""


class RealizabilityError(S2RError, RuntimeError):
    """No predictor survived: evidence that Assumption 2, or another precondition, failed (theory.md C10)."""


class LipschitzError(S2RError, ValueError):
    """A network's certified Lipschitz bound exceeds the declared one (Assumption 4)."""


class RecordingError(S2RError, ValueError):
    """Recorded episodes are missing, cut, or contradict themselves; the message names the row."""


class FileError(S2RError, OSError):
    """A file cannot be written, or another process holds it; the message has the path and the reason."""


class CheckpointError(S2RError, ValueError):
    """A policy file is cut, damaged, from a newer format, or contradicts what it is used with."""


def _again(cls: type[S2RError], given: dict[str, str]) -> S2RError:
    """An error that was raised elsewhere."""
    return cls(**given)
