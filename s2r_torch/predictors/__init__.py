"""The class F: groups of predictors, their registry, the networks that ship, and how they are trained."""
