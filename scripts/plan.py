"""The command `s2r-plan` of a clone: s2r_torch/commands/plan.py."""

from s2r_torch.commands.starting import plan

if __name__ == "__main__":
    plan()
