"""The generator estimated by self-normalised importance sampling, and the intermediate energy."""
