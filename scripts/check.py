"""The command `s2r-check` of a clone: s2r_torch/commands/check.py."""

from s2r_torch.commands.starting import check

if __name__ == "__main__":
    check()
