"""Samplers of others on the same targets, networks and training loop, to compare with."""
