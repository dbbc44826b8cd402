"""How many real episodes does a policy need? Read off the curve that its run measured and its file holds."""

from __future__ import annotations

from dataclasses import dataclass

from s2r_torch.errors import CheckpointError
from s2r_torch.files.json_schema import Integer, ListOf, Number, Record, check

NOTE = "looking"  # the name of the curve among a policy file's notes
MOST = 1000  # points of a curve
EPISODES, VALUE = Integer(1, 10**12), Number(0, 1 + 1e-6)
SCHEMA = Record(
    {
        "readings": ListOf(EPISODES, most=MOST, least=1),
        "episodes": ListOf(EPISODES, most=MOST, least=1),
        "value": ListOf(VALUE, most=MOST, least=1),
        "low": ListOf(VALUE, most=MOST, least=1),
        "high": ListOf(VALUE, most=MOST, least=1),
        "optimal": VALUE,
    }
)


@dataclass(frozen=True)
class Looking:
    """What the deployed policies are worth after so many real-world episodes, on the same worlds."""

    readings: tuple[int, ...]  # episodes along every sequence of the path cover
    episodes: tuple[int, ...]  # in all, per world
    value: tuple[float, ...]  # mean over worlds
    low: tuple[float, ...]  # 95 % interval of the mean, from the paired gap to the optimum
    high: tuple[float, ...]
    optimal: float  # on these worlds; 1 where nobody knows it

    def episodes_for(self, epsilon: float) -> int | None:
        """The fewest episodes measured from which on the lower end stays within epsilon of the optimum; None if none.

        >>> curve = Looking((5, 10, 20), (15, 30, 60), (.60, .66, .67), (.59, .65, .66), (.61, .67, .68), .68)
        >>> [curve.episodes_for(epsilon) for epsilon in (0.1, 0.04, 0.01)]
        [15, 30, None]
        """
        enough = None
        for episodes, low in reversed([*zip(self.episodes, self.low, strict=True)]):
            if self.optimal - low > epsilon:
                break
            enough = episodes
        return enough


def looking_of(notes: dict, path: object) -> Looking | None:
    """The curve among the notes of a policy file; None where its run was never evaluated.

    Raises:
        CheckpointError: a curve that no run measured.
    """
    if NOTE not in notes:
        return None
    check(SCHEMA, notes[NOTE], f"notes.{NOTE}")
    lists = {name: tuple(value) for name, value in notes[NOTE].items() if name != "optimal"}
    episodes = lists["episodes"]
    if len({len(values) for values in lists.values()}) > 1 or list(episodes) != sorted(set(episodes)):
        raise CheckpointError(
            expected="as many values as numbers of episodes, which ascend",
            got=f"others in notes.{NOTE} of {path}",
            cause="a file edited by hand",
        )
    return Looking(optimal=notes[NOTE]["optimal"], **lists)
