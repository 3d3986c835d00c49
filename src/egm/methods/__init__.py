"""Methods that train a sampler from an energy."""
