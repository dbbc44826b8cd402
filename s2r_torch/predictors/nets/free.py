"""Networks without a certificate: any `nn.Module` of a user's, stacked and evaluated by vmap. The reference path.

    @register("mine")
    class Mine(FreeNet):
        def module(self, inputs, outputs):
            return nn.Sequential(nn.Linear(inputs, 64), nn.GELU(), nn.Linear(64, outputs))

It gets the statistics of `lookup`, the scarcity of readings, x, and the densities looked up at x. Its Lipschitz bound
is infinite, and the class is marked (`Ensemble.certified`): no guarantee that uses Assumption 4 holds.

What layers do only in training, such as Dropout, they do where gradients are taken, and nowhere else. A module that
vmap cannot run (`.item()`, an `if` on numbers) is run member by member. A module that cannot be a predictor is refused
when it is made: `_Examined` lists why.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from s2r_torch.defaults import outside_inference, plain_torch
from s2r_torch.errors import SettingError
from s2r_torch.held import attributes, changed, faults_of, numbers, opened, outside, stir, streams
from s2r_torch.predictors.nets.architectures import LookupNet
from s2r_torch.predictors.nets.steps import Constants, Sizes, Step
from s2r_torch.rng import kept_globals, seed_globals
from s2r_torch.text import printable

DRAWS = 32  # of the example in training: Dropout may leave nothing of a single one
ROWS = 3  # of the example that a module is examined with, the last at the middle of the box
BLOCK = 1024  # rows that a module is given at once, fewer padded to a power of two: the numbers it was examined with
SIZES = tuple(2**k for k in range(11))
FORWARD = "the module's forward"
RECOMPUTED = "a forward that keeps its own numbers, or runs again for gradients, as torch.utils.checkpoint does"
Weights = dict[str, Tensor]


class FreeNet(LookupNet):
    """Base of users' networks without a certificate; give it `module`."""

    certified = False

    def module(self, inputs: int, outputs: int) -> nn.Module:
        """One member's network of one step, freshly initialised: [..., inputs] -> [..., outputs], row by row."""
        raise NotImplementedError

    def make_step(self, states: int, generator: torch.Generator | None) -> Step:
        inputs = self.summary_size + 1 + states + self.problem.spec.width
        sizes = self.sizes(self.summary_size, states)
        seed = int(torch.randint(2**62, (1,), generator=generator))
        with kept_globals(), plain_torch(), torch.inference_mode(False), torch.enable_grad():
            seed_globals(seed)  # users' code sees torch as it is when imported, with a stream of its own
            name = f"{type(self).__name__}.module"
            with faults_of(f"{name}({inputs}, {sizes.num_actions}) to make a module", "the code that makes it"):
                modules = [self.module(inputs, sizes.num_actions) for _ in range(self.size)]
                rows = torch.randn(ROWS, inputs)
                place = self.summary_size + 1
                rows[-1, place : place + self.problem.spec.width] = 0  # where every policy is tried before it acts
                spare = self.module(inputs, sizes.num_actions)
                seed_globals(seed)
                again = self.module(inputs, sizes.num_actions)
            return FreeStep(modules, sizes, rows, name, again, spare)


@dataclass(frozen=True, eq=False)
class PreparedFree:
    """One step's modules for given D."""

    summary: Tensor  # [B, K + 1] with the scarcity of readings
    weights: Weights  # every parameter, stacked

    def part(self, members: slice, simulators: slice) -> PreparedFree:
        """For these members and simulators."""
        return PreparedFree(self.summary[simulators], {k: w[members] for k, w in self.weights.items()})


class FreeStep(Step):
    """Stacked copies of a module.

    Args:
        modules: one per member, alike but for their parameters.
        sizes: see `Sizes`.
        rows: `[ROWS, inputs]` what the module is tried on.
        name: what errors call it.
        again: the first one, made again with the same seed.
        spare: a further one, of which nothing is kept.

    Raises:
        SettingError: a module that cannot be a predictor.
    """

    def __init__(
        self, modules: list[nn.Module], sizes: Sizes, rows: Tensor, name: str, again: nn.Module, spare: nn.Module
    ):
        super().__init__()
        self.sizes, self.name = sizes, name
        examined = _Examined(name, sizes.num_actions, modules)
        examined.require_repeatable(again)
        expected = torch.stack([examined.outputs(module, rows) for module in modules])
        examined.require_rows(rows, expected[0])
        weights, constants = examined.state(rows, spare)
        self._ties = _ties(modules[0])
        self.weights = nn.ParameterDict({_key(k): nn.Parameter(w, trained) for k, (w, trained) in weights.items()})
        for k, value in constants.items():
            self.register_buffer(f"constant/{_key(k)}", value)
        self._names = {_key(k): k for k in weights}
        self._constants = {f"constant/{_key(k)}": k for k in constants}
        self._module = [modules[0].to("meta")]  # in a list: not a submodule, its own weights are not used
        self._by_vmap = self._vmap_gives(rows, expected)
        self._require_trained(rows)
        first = {self._names[k]: w[0] for k, w in self.weights.items()}
        with torch.no_grad():
            alike = self._by_vmap or _close(self._run(dict(self.weights.items()), rows), expected)
            alike &= _close(examined.called_with(spare, self._tied(first | constants), rows), expected[0])
        if not alike:
            what = "members that differ by their parameters alone"
            cause = "numbers drawn by its own code that are no parameters: keep them with register_parameter"
            examined.refuse(what, "another result with their parameters only", cause)

    def prepare(self, summary: Tensor, scarcity: Tensor, constants: Constants) -> PreparedFree:
        return PreparedFree(torch.cat([summary, scarcity[:, None]], -1), dict(self.weights.items()))

    def values(self, prepared: PreparedFree, columns: Tensor, n: int) -> Tensor:
        rows = torch.cat([prepared.summary.repeat_interleave(n, 0), columns[:-1].T], -1)  # [m, inputs]
        if torch.compiler.is_exporting():  # any number of rows
            return self._run(prepared.weights, rows).mT
        if len(rows) == 0:
            return rows.new_zeros(len(next(iter(prepared.weights.values()))), self.sizes.num_actions, 0)
        return torch.cat([self._run(prepared.weights, part)[:, :n] for part, n in _blocks(rows)], 1).mT

    def lipschitz_bound(self, constants: Constants) -> Tensor:
        return torch.full((self.sizes.members,), torch.inf, dtype=torch.float64)

    @outside_inference()
    @plain_torch()  # what a user's forward makes without a dtype must not depend on who calls
    def _run(self, weights: Weights, rows: Tensor) -> Tensor:
        """All members' values, [F, m, A]."""
        self._module[0].train(torch.is_grad_enabled())
        constants = {name: getattr(self, key) for key, name in self._constants.items()}

        def one(member: Weights) -> Tensor:
            named = self._tied({self._names[k]: w for k, w in member.items()} | constants)
            return torch.func.functional_call(self._module[0], named, (rows.clone(),)).to(rows.dtype)

        with faults_of(f"{self.name} to map rows {list(rows.shape)} to values", FORWARD):
            if self._by_vmap:
                return torch.func.vmap(one, randomness="different")(weights)
            members = range(len(next(iter(weights.values()))))
            return torch.stack([one({k: w[f] for k, w in weights.items()}) for f in members])

    def _tied(self, named: Weights) -> Weights:
        """Numbers by all names that the module has for them."""
        return named | {other: named[name] for other, name in self._ties.items()}

    def _vmap_gives(self, rows: Tensor, expected: Tensor) -> bool:
        """Whether vmap runs the module, in training and in use, and gives what every module alone gave."""
        self._by_vmap = True
        try:
            self._run(dict(self.weights.items()), rows)
            with torch.no_grad():
                return _close(self._run(dict(self.weights.items()), rows), expected)
        except Exception:  # what a user's code makes of being vectorised is not known
            return False

    def _require_trained(self, rows: Tensor) -> None:
        """Refuses a module whose gradients are lost once its numbers are handed to it, as those of all members are."""
        weights = dict(self.weights.items())
        trained = [w for w in weights.values() if w.requires_grad]
        with faults_of(f"gradients of {self.name} with numbers that are handed to it", RECOMPUTED):
            torch.autograd.grad(self._run(weights, rows).sum(), trained, allow_unused=True)


class _Examined:
    """What a module must be, each with its one error: a function of one row and of its parameters alone."""

    def __init__(self, name: str, num_actions: int, modules: list[nn.Module]):
        self.name, self.num_actions, self.modules = name, num_actions, modules
        if not all(isinstance(module, nn.Module) for module in modules):
            self.refuse("an nn.Module", type(modules[0]).__name__)
        if isinstance(modules[0], torch.jit.ScriptModule | nn.DataParallel | nn.parallel.DistributedDataParallel):
            cause = "compiled or spread already, which members that are stacked cannot be: give the module in it"
            self.refuse("a plain nn.Module", type(modules[0]).__name__, cause)
        parameters = [p for module in modules for p in module.parameters()]
        if len({*map(id, parameters)}) < len(parameters) or any(p.is_meta for p in parameters):
            self.refuse("a new module with numbers of its own at every call", "the same one again, or none", "reuse")

    def refuse(self, expected: str, got: str, cause: str = "a module that cannot be a predictor") -> None:
        raise SettingError(expected=f"{expected} from {self.name}", got=got, cause=cause)

    @torch.no_grad()
    def outputs(self, module: nn.Module, rows: Tensor) -> Tensor:
        """What the module gives in use, [ROWS, A]."""
        self._set(module, training=False)
        around = outside(module)
        q = self._values(module, rows).to(rows.dtype)
        stir()
        held, drawn = attributes(module), streams()
        with opened() as files:
            again = self._called(module, rows)
        if not torch.equal(again.to(rows.dtype), q):
            self.refuse("the same values for the same rows", "others", "randomness that `eval()` does not switch off")
        if files:
            cause = "numbers that no policy file holds: read them when the module is made, into parameters or buffers"
            self.refuse("a forward without files", f"one that opens {printable(sorted(files)[0])}", cause)
        moved = changed(drawn, streams())
        if moved:
            self.refuse(
                "a forward that draws no numbers", f"{moved[0]} in another state", "a seed set, or draws unused"
            )
        self._require_kept(module, held)
        self._require_alone(module, around)
        return q

    def _require_alone(self, module: nn.Module, around: dict[str, object]) -> None:
        """Refuses what calls leave behind outside of the module."""
        moved = changed(around, outside(module))
        if moved:
            cause = "a counter or a memory outside of it, which no file holds: make it a buffer that stays as it is"
            self.refuse("a forward that changes nothing", f"others after a call: {', '.join(moved[:4])}", cause)

    @torch.no_grad()
    def require_rows(self, rows: Tensor, q: Tensor) -> None:
        """Refuses what makes values of a row from other rows: alone, in another order, among many."""
        module = self.modules[0]
        for k in range(len(rows)):
            self._require_same(self._called(module, rows[k : k + 1]), q[k : k + 1], "for a row alone")
        self._require_same(self._called(module, rows.flip(0)).flip(0), q, "in another order")
        for size in SIZES:
            others = torch.randn(size, rows.shape[1])
            few = torch.randperm(size)[: len(rows)]
            others[few] = rows[: len(few)]
            self._require_same(self._called(module, others)[few], q[: len(few)], f"among {size} rows")

    def _require_same(self, values: Tensor, q: Tensor, where: str) -> None:
        if not _close(values, q):
            self.refuse("values row by row", f"others {where}", "statistics of the batch, or an order of rows")

    def require_repeatable(self, again: nn.Module) -> None:
        """Refuses numbers that do not come from the streams that a seed decides."""
        if changed(numbers(self.modules[0]), numbers(again)):
            cause = "a generator of its own, or the clock; torch's, numpy's and random's global ones are seeded"
            self.refuse("the same module for the same seed", "other numbers", cause)

    def called_with(self, module: nn.Module, numbers: Weights, rows: Tensor) -> Tensor:
        """What another module gives with these numbers in place of its own."""
        self._set(module, training=False)
        self._called(module, rows)  # what is made by a first call
        with faults_of(f"{self.name} to map rows {list(rows.shape)} to values", FORWARD):
            return torch.func.functional_call(module, numbers, (rows.clone(),)).to(rows.dtype)

    def _require_kept(self, module: nn.Module, held: dict[str, object]) -> None:
        """Refuses what calls leave behind: no file holds it, and values may come to depend on it.

        What is kept of the rows themselves, such as a map of attention, is the same for the same rows; in training
        Dropout may change it, and tensors are left out.
        """
        now = attributes(module)
        found = [name for name in changed(held, now) if not (module.training and isinstance(now.get(name), Tensor))]
        if found:
            expected, got = "attributes that stay as they are", f"others after a call: {', '.join(found[:4])}"
            self.refuse(expected, got, "a counter or a memory in its forward: members would depend on earlier calls")

    def state(self, rows: Tensor, spare: nn.Module) -> tuple[dict[str, tuple[Tensor, bool]], Weights]:
        """What members have of their own, stacked, with whether it is trained; and buffers that all share."""
        self._set(spare, training=False)
        self._called(spare, rows)  # what is made by a first call
        first, others = self.modules[0], [*self.modules[1:], spare]
        trained = {name: p for name, p in first.named_parameters() if p.requires_grad}
        if not trained:
            self.refuse("parameters", "none that requires a gradient", "nothing to train")
        odd = [name for name, p in first.named_parameters() if not p.is_floating_point()]
        if odd:
            self.refuse("parameters of real numbers", f"others in {', '.join(odd[:4])}", "make constants buffers")
        hooked = [name for name, p in first.named_parameters() if p._backward_hooks or p._post_accumulate_grad_hooks]
        hooked += [name or "it" for name, m in first.named_modules() if m._backward_hooks or m._backward_pre_hooks]
        if hooked:
            cause = "members are stacked, which leaves such hooks behind; requires_grad_(False) freezes a parameter"
            self.refuse("gradients without hooks", f"hooks on {', '.join(hooked[:4])}", cause)
        constants = {name: buffer.detach().clone() for name, buffer in first.named_buffers()}
        written = {name: (id(buffer), buffer._version) for name, buffer in first.named_buffers()}
        held, around = attributes(first), outside(first)
        self._set(first, training=True)
        self._require_gradients(self._values(first, rows.repeat(DRAWS, 1)), trained)
        anew = [name for name, buffer in first.named_buffers() if written[name] != (id(buffer), buffer._version)]
        if anew:
            kind = type(first.get_submodule(anew[0].rpartition(".")[0])).__name__
            self.refuse(
                "buffers that stay as they are",
                f"{', '.join(anew[:4])} of {kind}, which change in training",
                "batch statistics or power iterations (BatchNorm, spectral_norm): simulators would see each other",
            )
        self._require_kept(first, held)
        self._require_alone(first, around)
        own: set[str] = set()
        for other in others:
            if _shapes(other) != _shapes(first):
                got = "parameters or buffers of other shapes"
                self.refuse("members alike but for their numbers", got, "a random architecture")
            own |= {name for name, buffer in other.named_buffers() if not torch.equal(buffer, constants[name])}
        if any(not constants[name].is_floating_point() for name in own):
            cause = "an order or a mask of its own: make it real numbers, or the same for all"
            self.refuse("whole numbers and masks that all members share", "others", cause)
        kept = [dict((*m.named_parameters(), *m.named_buffers())) for m in self.modules]
        wanted = {name: p.requires_grad for name, p in first.named_parameters()} | dict.fromkeys(sorted(own), False)
        stacked = {name: (torch.stack([k[name].detach() for k in kept]), trains) for name, trains in wanted.items()}
        return stacked, {name: value for name, value in constants.items() if name not in own}

    def _require_gradients(self, q: Tensor, trained: Mapping[str, Tensor]) -> None:
        """Refuses values that no step of training could change, or would only spoil."""
        if not q.requires_grad:
            self.refuse("values that depend on parameters", "constants", "no_grad, detach or NumPy in its forward")
        with faults_of(f"gradients of {self.name}", "an operation in place, or one that has no gradient"):
            uneven = torch.linspace(1, 2, q.numel(), dtype=q.dtype).view_as(q)  # a sum may be the same for all weights
            gradients = torch.autograd.grad((q * uneven).sum(), list(trained.values()), allow_unused=True)
        if not any(gradient is not None and bool(gradient.any()) for gradient in gradients):
            cause = "rounding, a comparison or argmax in its forward"
            self.refuse("gradients with respect to parameters", "0 for all", cause)
        broken = [
            name
            for name, gradient in zip(trained, gradients, strict=True)
            if gradient is not None and not bool(torch.isfinite(gradient).all())
        ]
        if broken:
            self.refuse("finite gradients", f"NaN or inf in {', '.join(broken[:4])}", "a root or a logarithm at 0")

    def _values(self, module: nn.Module, rows: Tensor) -> Tensor:
        """What the module gives for these rows, [ROWS, A], as it is."""
        q, mode = self._called(module, rows), "in training" if module.training else "in use"
        plain = isinstance(q, Tensor) and q.layout == torch.strided and q.is_floating_point() and not q.is_meta
        if not plain or q.shape != (len(rows), self.num_actions):
            got = f"{list(q.shape)} of {q.dtype} on {q.device}" if isinstance(q, Tensor) else type(q).__name__
            cause = f"a wrong output size or type {mode}; the size is given"
            self.refuse(f"values [n, {self.num_actions}], one per action,", got, cause)
        if not bool(torch.isfinite(q).all()):
            self.refuse("finite values", f"NaN or inf {mode}", "its initialisation")
        return q

    def _set(self, module: nn.Module, *, training: bool) -> None:
        with faults_of(f"{self.name} that can be set into use or training", "a program, or a train() of its own"):
            module.train(training)

    def _called(self, module: nn.Module, rows: Tensor) -> Tensor:
        with faults_of(f"{self.name} to map rows {list(rows.shape)} to values", FORWARD):
            return module(rows.clone())


def _blocks(rows: Tensor) -> Iterator[tuple[Tensor, int]]:
    """Rows in parts of the sizes that a module was examined with, the last row repeated, and how many are real."""
    for part in rows.split(BLOCK):
        size = next(size for size in SIZES if size >= len(part))
        yield torch.cat([part, part[-1:].expand(size - len(part), -1)]), len(part)


def _ties(module: nn.Module) -> dict[str, str]:
    """Further names of parameters and buffers that have several: the first name of each."""
    first: dict[int, str] = {}
    named = [*module.named_parameters(remove_duplicate=False), *module.named_buffers(remove_duplicate=False)]
    return {name: first[id(value)] for name, value in named if first.setdefault(id(value), name) != name}


def _shapes(module: nn.Module) -> dict[str, torch.Size]:
    return {name: value.shape for name, value in (*module.named_parameters(), *module.named_buffers())}


def _close(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and bool(torch.allclose(a.to(b.dtype), b, rtol=1e-4, atol=1e-5))


def _key(name: str) -> str:
    """Names without dots, as `nn.ParameterDict` wants them, none that it has itself, and no two the same."""
    key = name.replace("%", "%25").replace("/", "%2F").replace(".", "/")
    return f"%{key}" if hasattr(nn.ParameterDict, key) else key
