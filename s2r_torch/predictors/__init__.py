"""The class F. Importing any part of it registers the networks that ship."""

from s2r_torch.predictors import architectures

__all__ = ["architectures"]
