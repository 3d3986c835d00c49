"""The generator estimated by self-normalised importance sampling, the intermediate energy, and regression losses."""
