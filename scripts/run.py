"""The command `s2r-run` of a clone: s2r_torch/commands/run.py."""

from s2r_torch.commands.starting import run

if __name__ == "__main__":
    run()
