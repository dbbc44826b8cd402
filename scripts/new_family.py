"""The command `s2r-new` of a clone: s2r_torch/commands/new.py."""

from s2r_torch.commands.starting import new

if __name__ == "__main__":
    new()
