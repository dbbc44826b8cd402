"""The command `s2r-compare` of a clone: s2r_torch/commands/compare.py."""

from s2r_torch.commands.starting import compare

if __name__ == "__main__":
    compare()
