"""What a user types: `s2r-run`, `s2r-deploy`, `s2r-plan`, `s2r-compare`, `s2r-check`, `s2r-new`."""
