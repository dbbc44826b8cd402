"""Reinforcement learning trained on many simulators and deployed in a world where no reward is ever seen.

For deployment, all that is needed:

    policy = s2r_torch.load_policy("policy.safetensors")
    deployed = s2r_torch.deploy(policy, world)                                  # a live world (UnlabelledWorld)
    log = s2r_torch.read_recording("yesterday.csv", policy.problem.spec)        # or episodes that were logged
    deployed = s2r_torch.deploy_recorded(policy, log)
    actions = deployed.policy.act(step, x)
"""

from s2r_torch.deployment.deploy import deploy, deploy_recorded
from s2r_torch.deployment.policy_file import load_policy, save_policy
from s2r_torch.deployment.recording.files import read_recording

__version__ = "0.1.0"
__all__ = ["deploy", "deploy_recorded", "load_policy", "read_recording", "save_policy"]
