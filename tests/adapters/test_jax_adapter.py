"""JAX energies as targets, with their gradients; skipped where JAX is missing."""

import importlib
import subprocess
import sys

import pytest
import torch

import egm
from egm.adapters import from_jax
from support.conditions import package

SPACE = egm.Space(x=egm.Real(2), s=egm.Real((), constraint="positive"), a=egm.Categorical(3, shape=4))
pytestmark = pytest.mark.adapters


@pytest.fixture
def jax():
    return package("jax")


def jax_energy(x, s, a):
    jnp = importlib.import_module("jax.numpy")
    return 0.5 * ((x - a[..., :2]) ** 2).sum(-1) / s + 2 * s + 0.3 * jnp.cos(a[..., 2:].astype(x.dtype)).sum(-1)


def torch_energy(x, s, a):
    return 0.5 * (x - a[..., :2]).square().sum(-1) / s + 2 * s + 0.3 * a[..., 2:].to(x.dtype).cos().sum(-1)


def states():
    return SPACE.reference_sample(12, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("shape", [(12,), (2, 3, 2), (1,), ()])
def test_energies_and_gradients_agree_with_torch(jax, batched, shape):
    ours, theirs = from_jax(SPACE, jax_energy, batched=batched), egm.Target(SPACE, torch_energy)
    n = max(1, torch.Size(shape).numel())
    latent = SPACE.to_latent({k: x[:n].reshape((*shape, *x.shape[1:])) for k, x in states().items()})
    (e, g), (e2, g2) = (target.latent_energy_and_gradient(latent) for target in (ours, theirs))
    torch.testing.assert_close(e, e2)
    torch.testing.assert_close(g, g2)
    torch.testing.assert_close(ours.latent_energy(latent), e)
    assert ours.score_calls == n


def test_cotangents_multiply_the_gradient(jax):
    target = from_jax(SPACE, jax_energy)
    state = states()
    state["x"].requires_grad_()
    weights = torch.linspace(-1, 2, 12)
    for energy in (target.energy, torch_energy):
        (weights * energy(**state)).sum().backward()
        found, state["x"].grad = state["x"].grad, None
        assert found is not None
        torch.testing.assert_close(
            found, weights[:, None] * (state["x"] - state["a"][:, :2]).detach() / state["s"][:, None]
        )


def test_the_check_finds_nothing_and_training_runs(jax):
    target = from_jax(SPACE, jax_energy)
    assert egm.check(target).findings == ()
    sampler = egm.fit(target, steps=20, network="MLP(width=16)", batch_size=64, refresh=128, seed=0, progress=False)
    assert sampler.sample(50, seed=1).ess > 0


def test_a_wrong_shape_is_explained(jax):
    with pytest.raises(egm.EnergyError, match=r"for 12 states .*from_jax\(\.\.\., batched=False\)"):
        from_jax(SPACE, lambda x, s, a: x.sum()).energy(**states())


def test_doubles_where_jax_has_them(jax):
    """Runs in another process, because the setting is global."""
    code = (
        "import jax; jax.config.update('jax_enable_x64', True)\n"
        "import torch, egm\n"
        "target = egm.adapters.from_jax(egm.Space(x=egm.Real(2)), lambda x: (x**2).sum(-1) / 3)\n"
        "x = torch.randn(5, 2, dtype=torch.float64, requires_grad=True)\n"
        "e = target.energy(x=x); e.sum().backward()\n"
        "assert e.dtype == torch.float64 and torch.allclose(e, x.square().sum(-1) / 3, rtol=1e-15, atol=0)\n"
        "assert torch.allclose(x.grad, 2 * x / 3, rtol=1e-15, atol=0)\n"
        "assert target.energy(x=x.detach().float()).dtype == torch.float32\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=300)


def test_a_missing_jax_is_reported_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ImportError, match=r"from_jax needs jax: pip install 'egm\[jax\]'"):
        from_jax(SPACE, jax_energy)
