"""Training the class F by the Bellman risk, backward over layers; a fit that is stopped goes on to the bit."""
