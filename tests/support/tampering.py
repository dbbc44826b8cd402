"""Policy files changed by hand, with a checksum that is right again (crafted) or not."""

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
