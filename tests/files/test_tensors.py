"""Files of tensors: what is read is what was written, to the bit, or one error that says what lies there instead."""

import json
import os
import pickle
import random

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save, save_file
from support.tampering import outer, with_outer

from s2r_torch.errors import CheckpointError
from s2r_torch.files import tensors as tensor_files
from s2r_torch.files.layout import MOST_HEADER
from s2r_torch.files.tensors import FORMAT, KEY, OURS, digest, read, write

TENSORS = {
    "a": torch.tensor([[1.5, -0.0], [3.0, 4.0]]),
    "b": torch.arange(3),
    "c": torch.tensor([True, False]),
    "d": torch.zeros(4, 0, dtype=torch.float64),
    "e": torch.tensor(2.0, dtype=torch.float64),
}
HEADER = {"name": "sensor \x1b[31m [deg] é", "list": [1, 0.1, None, True], "record": {"b": {}, "a": []}}


@pytest.fixture
def path(tmp_path):
    write(tmp_path / "t.safetensors", TENSORS, HEADER)
    return tmp_path / "t.safetensors"


def own(header):
    return {key: value for key, value in header.items() if key not in OURS}


def test_round_trip(path):
    header, tensors = read(path)
    assert own(header) == HEADER and {*tensors} == {*TENSORS}
    for name, value in TENSORS.items():
        assert tensors[name].dtype == value.dtype and torch.equal(tensors[name], value), name
    assert torch.signbit(tensors["a"][0, 1])
    before = path.read_bytes()
    write(path, tensors, own(header))
    assert path.read_bytes() == before


def test_views_and_scalars_of_other_libraries_are_kept(tmp_path):
    base = torch.arange(6.0).view(2, 3)
    write(tmp_path / "t", {"x": base.T, "y": base[0], "z": base}, {"n": np.int64(3), "p": np.float64(0.5)})
    header, tensors = read(tmp_path / "t")
    assert (
        own(header) == {"n": 3, "p": 0.5} and torch.equal(tensors["x"], base.T) and torch.equal(tensors["y"], base[0])
    )


def test_every_single_changed_byte_is_refused(path):
    """All bytes of a file in turn, two of their bits; blanks between header and data included."""
    data = path.read_bytes()
    for i in range(len(data)):
        for bit in (0, 5):
            path.write_bytes(data[:i] + bytes([data[i] ^ 1 << bit]) + data[i + 1 :])
            with pytest.raises(CheckpointError):
                read(path)
    for end in range(len(data)):
        path.write_bytes(data[:end])
        with pytest.raises(CheckpointError, match="cut short or damaged"):
            read(path)


def test_nothing_can_hide_in_a_file(path):
    """Bytes at the end, another name in the metadata, blanks, a key twice: the numbers are right, and it is refused."""
    data = path.read_bytes()
    header = outer(data)
    inner = header["__metadata__"][KEY]
    hidden = [
        data + b"\0",
        with_outer(data, header | {"__metadata__": {KEY: inner, "more": "hidden"}}),
        with_outer(data, header, separators=(", ", ":")),
        with_outer(data, header, pad=16),
        with_outer(data, header | {"__metadata__": {KEY: inner.replace('"list"', ' "list"')}}),
        with_outer(data, header | {"__metadata__": {KEY: inner.replace("0.1", "1e-1")}}),
        with_outer(data, header | {"__metadata__": {KEY: inner.replace('"list":', '"list":[],"list":')}}),
    ]
    for changed in hidden:
        assert changed != data
        path.write_bytes(changed)
        with pytest.raises(CheckpointError):
            read(path)
    path.write_bytes(with_outer(data, header))
    read(path)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float8_e4m3fn", "float64", "complex64", "int32"])
def test_numbers_that_another_program_stored_otherwise(path, dtype):
    """The header is kept, one tensor or all are of another type."""
    metadata = outer(path.read_bytes())["__metadata__"]
    for names in (["a"], ["a", "e", "d"]):
        changed = {k: v.to(getattr(torch, dtype)) if k in names else v for k, v in TENSORS.items()}
        if all(changed[k].dtype == TENSORS[k].dtype for k in names):
            continue
        save_file(changed, path, metadata=metadata)
        with pytest.raises(CheckpointError, match="numbers were changed"):
            read(path)


def test_a_file_written_again_without_its_header(path):
    save_file(load_file(path), path)
    with pytest.raises(CheckpointError, match="another safetensors file"):
        read(path)


@pytest.mark.parametrize(
    "data, words",
    [
        (
            b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 2700596\n",
            "a Git LFS pointer.*git lfs pull",
        ),
        (b"<!DOCTYPE html>\n<html></html>", "a web page"),
        (b"\n <html lang=en>", "a web page"),
        (b"<?xml version='1.0'?><Error/>", "server's error message"),
        (b"PK\x03\x04" + bytes(100), "a zip archive, as torch.save writes"),
        (pickle.dumps({"a": 1}), "a pickle"),
        (b"\x93NUMPY\x01\x00v\x00", "a NumPy array"),
        (b"\x1f\x8b\x08\x00" + bytes(20), "gunzip"),
        (b'{"a": 1}', "a JSON text"),
        (b"", "an empty file"),
        (b"\n", "cut short or damaged"),
        (random.Random(0).randbytes(5000), "cut short or damaged"),
    ],
)
def test_other_kinds_of_file_are_named(path, data, words):
    path.write_bytes(data)
    with pytest.raises(CheckpointError, match=words):
        read(path)


def test_what_is_no_file_at_all(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for name, words in {
        "": "but a folder",
        "pipe": "but a device or a pipe; likely cause: another path",
        "loop": "no file",
        "x" * 300: "File name",
    }.items():
        with pytest.raises(CheckpointError, match=words):
            read(tmp_path / name)
    with pytest.raises(CheckpointError, match=r"no file .*\\x1b\[31m"):
        read(tmp_path / "\x1b[31mred")


@pytest.mark.parametrize(
    "inner", ["[" * 10**5 + "]" * 10**5, '{"a":' * 10**5, "9" * 5000, '{"format":NaN}', '{"format":1e999}']
)
def test_headers_that_json_should_not_hold(path, inner):
    path.write_bytes(save(TENSORS, {KEY: inner}))
    with pytest.raises(CheckpointError):
        read(path)


@pytest.mark.parametrize("format", [None, 1, FORMAT - 1, FORMAT + 1, 99, True, str(FORMAT), 10**30, [FORMAT]])
def test_other_formats_are_told_old_from_new(path, format):
    old = format in (None, 1, FORMAT - 1) and format is not True
    path.write_bytes(
        save(TENSORS, {KEY: json.dumps({"format": format, "tensors": sorted(TENSORS), "digest": "0" * 32})})
    )
    with pytest.raises(CheckpointError, match="make_checkpoints" if old else "newer"):
        read(path)


def test_sizes_are_compared_before_anything_is_read(path):
    """A file that claims terabytes, in its length or in its tensors, is refused from its first bytes."""
    data = path.read_bytes()
    header = outer(data)
    header["a"] = {"dtype": "F32", "shape": [2**40], "data_offsets": [0, 2**42]}
    for changed in (
        with_outer(data, header),
        (2**62).to_bytes(8, "little") + data[8:],
        (2**30).to_bytes(8, "little") + data[8:],
    ):
        path.write_bytes(changed)
        with pytest.raises(CheckpointError, match="damaged"):
            read(path)
    with path.open("wb") as file:
        file.write(data)
        file.truncate(2**40)  # sparse
    with pytest.raises(CheckpointError, match="bytes too many"):
        read(path)


def test_another_kind_of_our_own_files(path):
    with pytest.raises(CheckpointError, match="kind 'policy'; got 'tensors'"):
        read(path, "policy")


@pytest.mark.parametrize(
    "tensors, header",
    [
        ({}, {"x": float("nan")}),
        ({}, {"x": {1, 2}}),
        ({}, {"x": object()}),
        ({"x": torch.ones(2, dtype=torch.complex64)}, {}),
    ],
)
def test_what_no_file_can_hold_is_refused_before_it_is_written(path, tensors, header):
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match="JSON values"):
        write(path, tensors, header)
    assert path.read_bytes() == before and os.listdir(path.parent) == [path.name]


def test_a_header_that_no_reader_takes_is_not_written(path):
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match="a header of at most 8388608 bytes; got one of 8.*notes"):
        write(path, {}, {"note": "x" * MOST_HEADER}, "policy")
    assert path.read_bytes() == before


def test_a_disk_that_loses_bytes_keeps_the_old_file(path, monkeypatch):
    before = path.read_bytes()
    monkeypatch.setattr(tensor_files.os, "fsync", lambda descriptor: os.ftruncate(descriptor, 100))
    with pytest.raises(CheckpointError, match="damaged"):
        write(path, TENSORS, HEADER)
    assert path.read_bytes() == before


def test_digests_tell_names_types_and_shapes_apart():
    zeros = torch.zeros(2, 3)
    others = [
        {"x": zeros},
        {"y": zeros},
        {"x": zeros.T},
        {"x": zeros.int()},
        {"x": zeros.flatten()},
        {"x": zeros[:1], "y": zeros[1:]},
    ]
    assert len({digest(tensors) for tensors in others}) == len(others)
    assert digest({"x": torch.zeros(3, 2).T}) == digest({"x": zeros})
