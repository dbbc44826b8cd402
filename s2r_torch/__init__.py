"""Reinforcement learning trained on many simulators and deployed in a world where no reward is ever seen.

For deployment, all that is needed:

    policy = s2r_torch.load_policy("policy.safetensors")
    deployed = s2r_torch.deploy(policy, world)              # an UnlabelledWorld; or policy.condition_on(observations)
    actions = deployed.policy.act(step, x)
"""

from s2r_torch.checkpoint import load_policy, save_policy
from s2r_torch.deployment import deploy

__version__ = "0.1.0"
__all__ = ["deploy", "load_policy", "save_policy"]
