"""Networks over densities, Lipschitz by construction; what to import to write one of your own."""

from s2r_torch.predictors.nets.net import Net
from s2r_torch.predictors.registry import register

__all__ = ["Net", "register"]
