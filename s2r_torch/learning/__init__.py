"""SIMULATORS: explore them (Algorithm 2), eliminate predictors (3-6), all of Sim2Real (1)."""
