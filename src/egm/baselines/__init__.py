"""Baselines: Markov chains and other people's samplers, on the same targets, metrics and run format."""
