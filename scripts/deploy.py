"""The command `s2r-deploy` of a clone: s2r_torch/commands/deploy.py."""

from s2r_torch.commands.starting import deploy

if __name__ == "__main__":
    deploy()
