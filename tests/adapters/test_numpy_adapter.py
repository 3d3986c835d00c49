"""NumPy energies as targets."""

import math

import numpy as np
import pytest
import torch

import egm
from egm.adapters import from_numpy

SPACE = egm.Space(x=egm.Real(2), a=egm.Categorical(3, shape=4))


def numpy_energy(x, a):
    return 0.5 * ((x - a[..., :2]) ** 2).sum(-1) + 0.3 * (a[..., 2:] == 1).sum(-1)


def torch_energy(x, a):
    return 0.5 * (x - a[..., :2]).square().sum(-1) + 0.3 * (a[..., 2:] == 1).sum(-1)


def states(dtype=torch.float32):
    return SPACE.reference_sample(12, generator=torch.Generator().manual_seed(0), dtype=dtype)


@pytest.mark.parametrize("batched", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(12,), (2, 3, 2), (0,), ()])
def test_energies_agree_with_torch(batched, dtype, shape):
    target = from_numpy(SPACE, numpy_energy, batched=batched)
    n = math.prod(shape)
    state = {k: x[:n].reshape(*shape, *x.shape[1:]) for k, x in states(dtype).items()}
    found = target.energy(**state)
    assert found.dtype == dtype
    torch.testing.assert_close(found, torch_energy(**state))


def test_the_energy_sees_doubles_with_one_leading_axis_that_it_cannot_write_to():
    seen = []

    def energy(x, a):
        seen.append((x.dtype, x.shape, a.dtype, a.shape))
        x -= 1
        return x.sum(-1)

    state = {k: x.reshape(3, 4, *x.shape[1:]) for k, x in states().items()}
    with pytest.raises(ValueError, match="read-only"):
        from_numpy(SPACE, energy).energy(**state)
    assert seen == [(np.float64, (12, 2), np.int64, (12, 4))]


@pytest.mark.parametrize(
    ("energy", "batched", "message"),
    [
        (lambda x, a: x.sum(), True, r"for 12 states .* shape \(\).*batched=False"),
        (lambda x, a: x, False, r"for 12 states .* shape \(12, 2\)"),
        (lambda x, a: np.array(["a"] * 12), True, "must return numbers"),
        (lambda x, a: x.sum(-1) + 1j, True, "must return numbers, got complex128"),
    ],
)
def test_wrong_results_are_explained(energy, batched, message):
    with pytest.raises(egm.EnergyError, match=message):
        from_numpy(SPACE, energy, batched=batched).energy(**states())


def test_such_a_target_is_checked_and_trained():
    target = from_numpy(SPACE, numpy_energy)
    assert repr(target) == "Target(numpy_energy)"
    found = egm.check(target)
    assert found.ok
    assert [f.name for f in found.findings] == ["gradient"]
    with pytest.raises(egm.EnergyError, match="without a gradient"):
        target.latent_energy_and_gradient(states())
    sampler = egm.fit(target, steps=20, network="MLP(width=16)", batch_size=64, refresh=128, seed=0, progress=False)
    assert sampler.sample(50, seed=1).ess > 0


def test_integers_and_symbols_alone():
    space = egm.Space(a=egm.Categorical(3, shape=2))
    target = from_numpy(space, lambda a: a.sum(-1))
    assert target.energy(a=torch.tensor([[1, 2]])).tolist() == [3.0]
    assert egm.check(target).findings == ()
