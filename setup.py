"""The packages, and conf/ as one of them: a wheel brings its configurations (`s2r_torch.commands.configuration`)."""

from setuptools import find_packages, setup

setup(packages=[*find_packages(include=["s2r_torch*"]), "s2r_torch.conf"], package_dir={"s2r_torch.conf": "conf"})
