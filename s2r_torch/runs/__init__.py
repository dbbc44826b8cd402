"""One run, stage by stage: settings, draws, results, the folder that they are kept in."""
