"""Encoders: what turns a rich reading (an image, many channels) into the few numbers that densities live on, by name.

>>> from s2r_torch.encoders import ENCODERS
>>> {'identity', 'learned', 'pca'} <= {*ENCODERS}
True
"""

from __future__ import annotations

from s2r_torch.registry import Registry

ENCODERS = Registry(
    "encoder",
    {
        "identity": "s2r_torch.encoders.contract:Identity",
        "pca": "s2r_torch.encoders.pca:PCA",
        "learned": "s2r_torch.encoders.learned:Learned",
    },
    "Encoder",
)
register_encoder, encoder_class = ENCODERS.register, ENCODERS.named
