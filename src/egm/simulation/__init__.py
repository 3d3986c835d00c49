"""Simulation of the learned process from prior to target, and the exact path weights of its draws."""
