"""What a run is compared with. Families worth running let theta decide what pays, so that these do worse."""
