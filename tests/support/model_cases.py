"""One model with every kind of site, by hand; Pyro's and NumPyro's versions of it must have this density."""

import importlib
from typing import Any

import torch
from torch import distributions as dist

from support.conditions import package

Y = [0.3, -1.2, 2.0, 0.7]


def program(kind: str) -> tuple[Any, Any]:
    """The package "pyro" or "numpyro" and its distributions; skips where it is missing."""
    return package(kind), importlib.import_module(f"{kind}.distributions")


def log_joint(w, s, u, m, z, b, y=None):
    """w: a simplex, s > 0, −1 < u < 3, m: two reals, z: four symbols of three kinds, b: a coin; y observed."""
    y = torch.tensor(Y, dtype=m.dtype) if y is None else y
    total = dist.Dirichlet(torch.tensor([1.0, 2.0, 3.0], dtype=m.dtype)).log_prob(w)
    total = total + dist.Gamma(2.0, 1.5).log_prob(s) + dist.Uniform(-1.0, 3.0, validate_args=False).log_prob(u)
    total = total + dist.Normal(1.0, 2.0).log_prob(m).sum(-1)
    total = total + w[..., None, :].expand(*z.shape, 3).gather(-1, z[..., None])[..., 0].log().sum(-1)
    total = total + dist.Bernoulli(0.3).log_prob(b.to(m.dtype))
    centre = torch.cat([m, u[..., None]], -1).gather(-1, z) + b[..., None]
    return total + dist.Normal(centre, s[..., None]).log_prob(y).sum(-1)


def pyro_model(y):
    pyro, pd = program("pyro")
    w = pyro.sample("w", pd.Dirichlet(torch.tensor([1.0, 2.0, 3.0])))
    s = pyro.sample("s", pd.Gamma(2.0, 1.5))
    u = pyro.sample("u", pd.Uniform(-1.0, 3.0))
    m = pyro.sample("m", pd.Normal(1.0, 2.0).expand([2]).to_event(1))
    b = pyro.sample("b", pd.Bernoulli(0.3))
    with pyro.plate("data", len(y)):
        z = pyro.sample("z", pd.Categorical(w))
        pyro.sample("y", pd.Normal(torch.cat([m, u[None]])[z] + b, s), obs=y)


def numpyro_model(y):
    jnp = importlib.import_module("jax.numpy")
    numpyro, nd = program("numpyro")
    w = numpyro.sample("w", nd.Dirichlet(jnp.array([1.0, 2.0, 3.0])))
    s = numpyro.sample("s", nd.Gamma(2.0, 1.5))
    u = numpyro.sample("u", nd.Uniform(-1.0, 3.0))
    m = numpyro.sample("m", nd.Normal(1.0, 2.0).expand([2]).to_event(1))
    b = numpyro.sample("b", nd.Bernoulli(0.3))
    with numpyro.plate("data", len(y)):
        z = numpyro.sample("z", nd.Categorical(w))
        numpyro.sample("y", nd.Normal(jnp.concatenate([m, u[None]])[z] + b, s), obs=y)
