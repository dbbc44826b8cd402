"""Ways to damage a policy file, or to forge one: what `bench.py fuzz` tries, each from one random stream.

Damage leaves the checksum as it was; a forgery is written with a checksum that is right.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from random import Random

import torch
from torch import Tensor

from s2r_torch.files import tensors as tensor_files
from s2r_torch.files.strict_json import spelt

Place = tuple  # keys and indices that lead to a value of the header


class Original:
    """A policy file in parts, all of them known to be right."""

    def __init__(self, name: str, data: bytes, header: dict, tensors: dict[str, Tensor]):
        self.name, self.data, self.tensors = name, data, tensors
        self.header = {key: value for key, value in header.items() if key not in tensor_files.OURS}
        self.start = 8 + int.from_bytes(data[:8], "little")  # of the data
        self.places = list(places(self.header))


class Forged:
    """A header and tensors that are to be written with a checksum that is right."""

    def __init__(self, original: Original):
        self.header, self.tensors = copy.deepcopy(original.header), dict(original.tensors)
        self.spelling = ("", "")  # a part of the header's text, and what is written in its place

    def data(self) -> bytes:
        data = tensor_files.encoded(self.tensors, self.header, "policy")
        if self.spelling[0]:
            header = outer(data)
            header["__metadata__"][tensor_files.KEY] = header["__metadata__"][tensor_files.KEY].replace(*self.spelling)
            data = with_header(data, json.dumps(header, separators=(",", ":")))
        return data


def places(node: object, path: Place = ()) -> Iterator[Place]:
    """The places of all values in a header, records and lists included."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield (*path, key)
        yield from places(value, (*path, key))


def value_at(header: object, place: Place) -> object:
    for key in place:
        header = header[key]
    return header


def put(header: object, place: Place, value: object) -> None:
    value_at(header, place[:-1])[place[-1]] = value


def with_header(data: bytes, text: str) -> bytes:
    """A safetensors file with another text of its own header."""
    raw = text.encode()
    raw += b" " * (-len(raw) % 8)
    return len(raw).to_bytes(8, "little") + raw + data[8 + int.from_bytes(data[:8], "little") :]


def outer(data: bytes) -> dict:
    """What the safetensors header of a file says."""
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


# -- damage: the checksum stays as it was ------------------------------------------------------------------------------


def bits(a: Original, b: Original, r: Random) -> bytes:
    data = bytearray(a.data)
    for _ in range(r.choice((1, 1, 1, 2, 8))):
        end = len(data) if r.random() < 0.5 else a.start
        data[r.randrange(end)] ^= 1 << r.randrange(8)
    return bytes(data)


def overwritten(a: Original, b: Original, r: Random) -> bytes:
    data, at, n = bytearray(a.data), r.randrange(len(a.data)), r.choice((1, 4, 64, 4096))
    data[at : at + n] = r.choice((bytes(n), b"\xff" * n, r.randbytes(n)))[: len(data[at : at + n])]
    return bytes(data)


def digits(a: Original, b: Original, r: Random) -> bytes:
    data = bytearray(a.data)
    at = r.choice([i for i in range(8, a.start) if 48 <= data[i] < 58])
    data[at] = r.choice([c for c in range(48, 58) if c != data[at]])
    return bytes(data)


def resized(a: Original, b: Original, r: Random) -> bytes:
    how = r.randrange(4)
    if how == 0:
        return a.data[: r.randrange(len(a.data))]
    if how == 1:
        return a.data[: max(0, len(a.data) - r.randrange(1, 64))]
    return a.data + (bytes(r.randrange(1, 64)) if how == 2 else b.data[: r.randrange(1, 4096)])


def spliced(a: Original, b: Original, r: Random) -> bytes:
    how, i, j = r.randrange(5), *sorted(r.randrange(len(a.data)) for _ in range(2))
    if how == 0:
        return a.data[: a.start] + b.data[b.start :]
    if how == 1:
        return a.data[:i] + a.data[j:]
    if how == 2:
        return a.data[:j] + a.data[i:]
    n, k = r.choice((8, 64, 1024)), r.randrange(len(b.data))
    part = b.data[k : k + n]
    return a.data[:i] + part + a.data[i + len(part) * (how == 3) :]


def retyped(a: Original, b: Original, r: Random) -> bytes:
    """Another type, shape or place of one tensor, or a name more, in the safetensors header alone."""
    header = outer(a.data)
    names = [name for name in header if name != "__metadata__"]
    name, other = r.sample(names, 2)
    how, entry = r.randrange(5), header[name]
    if how == 0:
        same = {8: ("F64", "I64", "U64", "C64"), 4: ("F32", "I32", "U32")}
        entry["dtype"] = r.choice([t for kinds in same.values() if entry["dtype"] in kinds for t in kinds])
    elif how == 1:
        entry["shape"] = r.choice((entry["shape"][::-1], [1, *entry["shape"]], [*entry["shape"], 1], [0], []))
    elif how == 2:
        entry["data_offsets"], header[other]["data_offsets"] = header[other]["data_offsets"], entry["data_offsets"]
    elif how == 3:
        header[r.choice(("more", "group9.weight", "reference.more"))] = header.pop(name)
    else:
        header["__metadata__"]["hidden"] = "more"
    return with_header(a.data, json.dumps(header, separators=(",", ":")))


def foreign(a: Original, b: Original, r: Random) -> bytes:
    first = r.choice(
        (b"version https://git-lfs.github.com/spec/v1\n", b"<!DOCTYPE html>", b"PK\x03\x04", b"\x80\x04", b"{}")
    )
    return r.choice((first, first + a.data, first + a.data[len(first) :]))


# -- forgery: the checksum is right ------------------------------------------------------------------------------------

ODD = (
    *(
        None,
        True,
        False,
        "",
        "text",
        "os.system",
        "\x1b[31m",
        "9" * 300,
        0,
        1,
        -1,
        2,
        10**7,
        10**30,
        10**400,
        0.5,
        -0.0,
    ),
    *(1e-300, 1e300, -1e300, 1.5, 7, [], {}, [[]], {"a": 1}, [0] * 1000, [10**30], [None], {"kind": "net"}),
)


SPELLINGS = (  # a value, and what is written for it
    *((0, odd) for odd in ("NaN", "Infinity", "-Infinity", "1e999", "9" * 5000, "-0", "00", "")),
    *((0, "[" * n + "]" * n) for n in (10, 100, 100_000)),
    *((1, odd) for odd in (" 1", "1\n", '1,"x":1', '2,"x":1')),
    *((100.0, odd) for odd in ("100.00", "1e2", "1.0E2")),
    *(("a", odd) for odd in ('"\\u0061"', "'a'")),
)


def forged_digits(a: Original, b: Original, r: Random) -> Forged:
    """One digit of one number, or one letter of one text, is another."""
    made, at = Forged(a), r.choice([p for p in a.places if type(value_at(a.header, p)) in (int, float, str)])
    value = value_at(made.header, at)
    text = list(str(value) or " ")
    i = r.choice([i for i, c in enumerate(text) if c.isdigit()] or [r.randrange(len(text))])
    text[i] = r.choice("0123456789")
    put(made.header, at, type(value)("".join(text)))
    return made


def forged_values(a: Original, b: Original, r: Random) -> Forged:
    """One value is of another type, out of its range, gone, twice, or another place's."""
    made, at, how = Forged(a), r.choice(a.places), r.randrange(6)
    inside = value_at(made.header, at[:-1])
    if how == 0:
        del inside[at[-1]]
    elif how == 1 and isinstance(inside, dict):
        inside[r.choice(("more", "", "__class__", "format "))] = r.choice(ODD)
    elif how == 1:
        inside.insert(at[-1], copy.deepcopy(inside[at[-1]]))
    elif how == 2:
        put(made.header, at, copy.deepcopy(value_at(a.header, r.choice(a.places))))
    else:
        put(made.header, at, copy.deepcopy(r.choice(ODD)))
    return made


def forged_text(a: Original, b: Original, r: Random) -> Forged:
    """Something that JSON should not hold: NaN, a key twice, deep lists, long digits, blanks."""
    made = Forged(a)
    value, odd = r.choice(SPELLINGS)
    made.header["notes"] = {"x": value}
    made.spelling = (f'"x":{spelt(value)}', f'"x":{odd}')
    return made


def forged_recipes(a: Original, b: Original, r: Random) -> Forged:
    """Sizes that would take hours or gigabytes, and settings that no network has."""
    made = Forged(a)
    recipe = r.choice(made.header["groups"])
    settings = r.choice([value for value in recipe.values() if isinstance(value, dict)])
    key = r.choice([*settings, "members", "kind", "name"])
    value = r.choice(
        (2**14, 2**20, 2**31, 10**30, 0, -2, 3, 64, 1.5, "mlp", "film", "signed", "conv", "auto", "mixture")
    )
    (recipe if key in recipe else settings)[key] = value
    return made


def forged_tensors(a: Original, b: Original, r: Random) -> Forged:
    """Numbers, types, shapes and names of tensors are others, and listed as such."""
    made, (name, other), how = Forged(a), r.sample(sorted(a.tensors), 2), r.randrange(8)
    value = made.tensors[name].clone()
    flat = value.view(-1)
    at = r.randrange(max(1, flat.numel()))
    if how == 0 and flat.numel():
        flat[at] = r.choice((0, 1, -1, 2, 1000))
    elif how == 1 and flat.numel() and value.is_floating_point():
        flat[at] = r.choice((torch.nan, torch.inf, 1e30, -1e30, 1e-30))
    elif how == 2:
        value = value.to(
            r.choice((torch.float16, torch.bfloat16, torch.float64, torch.float32, torch.int32, torch.uint8))
        )
    elif how == 3:
        value = r.choice(
            (value[None], value[..., None], value.flatten(), value.mT if value.ndim > 1 else value[..., None])
        )
    elif how == 4:
        made.tensors[other], value = value, made.tensors[other]
    elif how == 5 and flat.numel():
        value = flat.roll(1).view_as(value)
    elif how == 6:
        made.tensors[r.choice(("more", "group7.x", "group0.more", "reference.more"))] = value
    else:
        value = value[:0] if value.ndim else value
    made.tensors[name] = value.contiguous()
    if how == 7 and r.random() < 0.5:
        del made.tensors[name]
    return made


Damage = Callable[[Original, Original, Random], bytes]
Forgery = Callable[[Original, Original, Random], Forged]
DAMAGE: tuple[tuple[Damage, int], ...] = (  # with how many of 100 files
    (bits, 17),
    (overwritten, 7),
    (digits, 12),
    (resized, 7),
    (spliced, 7),
    (retyped, 8),
    (foreign, 2),
)
FORGERY: tuple[tuple[Forgery, int], ...] = (
    (forged_digits, 12),
    (forged_values, 12),
    (forged_text, 2),
    (forged_recipes, 4),
    (forged_tensors, 10),
)
