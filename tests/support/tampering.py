"""Policy files changed by hand, with a checksum that is right again (crafted) or not."""

import json

from safetensors.torch import save

from s2r_torch.files import tensors as tensor_files
from s2r_torch.files.strict_json import spelt
from s2r_torch.files.tensors import KEY, OURS


def crafted(path, header, tensors, digest="right"):
    """Writes header and tensors as they are: `right` lists the tensors anew and computes the checksum, `stale` not."""
    if digest == "right":
        own = {k: v for k, v in header.items() if k not in OURS} if isinstance(header, dict) else {"header": header}
        path.write_bytes(tensor_files.encoded(tensors, own, "policy"))
    else:
        path.write_bytes(save(tensors, {KEY: spelt(header)}))


def outer(data):
    """What the safetensors header of a file says."""
    return json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])


def with_outer(data, header, separators=(",", ":"), pad=8):
    """The same file with another safetensors header."""
    raw = json.dumps(header, separators=separators).encode()
    raw += b" " * (-len(raw) % 8 + pad - 8)
    return len(raw).to_bytes(8, "little") + raw + data[8 + int.from_bytes(data[:8], "little") :]
