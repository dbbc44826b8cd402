"""Tensors of records, as they were: to the bit, and without what is zero in large ones."""

import pytest
import torch

from s2r_torch.errors import CheckpointError
from s2r_torch.files import tensors
from s2r_torch.files.records import SPARSE, Codec

CODEC = Codec([])


def test_a_large_tensor_of_nothing_but_zeros_is_written_and_read(tmp_path):
    """As rewards of a state that never pays are, once `budget=auto` has doubled the sizes."""
    packed, found = CODEC.pack(torch.zeros(SPARSE, dtype=torch.float64))
    tensors.write(tmp_path / "zeros.safetensors", found, {"value": packed})
    header, found = tensors.read(tmp_path / "zeros.safetensors")
    back = CODEC.unpack(header["value"], found)
    assert back.shape == (SPARSE,) and back.dtype == torch.float64 and not bool(back.any())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_a_large_tensor_that_is_mostly_zero_is_written_without_its_zeros(dtype, tmp_path):
    given = torch.zeros(40, 3 * SPARSE // 40, dtype=dtype)
    given[3:7, 100:110] = torch.arange(40).view(4, 10)
    if dtype.is_floating_point:
        given[9, :4] = torch.tensor([-0.0, torch.nan, torch.inf, 1e-42])
    packed, found = CODEC.pack({"D": (given, given.T)})
    tensors.write(tmp_path / "file", found, {"result": packed})
    assert (tmp_path / "file").stat().st_size < given.nbytes / 20
    header, found = tensors.read(tmp_path / "file")
    again = CODEC.unpack(header["result"], found)["D"]
    for one, other in zip(again, (given, given.T), strict=True):
        assert one.dtype == dtype and one.shape == other.shape
        assert one.numpy().tobytes() == other.contiguous().numpy().tobytes()


def test_others_are_written_as_they_are():
    full, small = torch.ones(SPARSE), torch.zeros(SPARSE - 1)
    _, found = CODEC.pack({"full": full, "small": small})
    assert found["full"] is full and found["small"] is small


def test_a_place_beyond_the_tensor_is_an_error_of_the_file():
    packed, found = CODEC.pack(torch.zeros(SPARSE))
    found["value.where"], found["value.there"] = torch.tensor([SPARSE]), torch.ones(1)
    with pytest.raises(CheckpointError, match="edited by hand"):
        CODEC.unpack(packed, found)
