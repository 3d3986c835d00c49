"""Estimation of the generator by self-normalised importance sampling, and the intermediate energy."""
