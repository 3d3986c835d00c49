"""The Triton kernels around matrix products agree with torch, and networks rounded to bfloat16 use them."""

import pytest
import torch
from torch.nn.functional import linear, silu

import egm.util.triton
from egm.networks import fused, mlp
from egm.networks.base import rounding
from egm.networks.mlp import MLP
from egm.spaces import Categorical, Real, Space
from support.gpu_cases import DEVICE, OnAGpu

kernels = pytest.importorskip("egm.networks.mlp_kernels", reason="no Triton")
needs_cuda = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA")


def random(*shape, dtype=torch.bfloat16):
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)), dtype=torch.float32).to(
        DEVICE, dtype
    )


@pytest.mark.parametrize(("sites", "n"), [(1, 2), (4, 2), (25, 2), (9, 3), (300, 1)])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_one_hot(sites, n, dtype):
    x = torch.randint(n + 1, (2, 33, sites), device=DEVICE, dtype=dtype)
    plain, found = fused.one_hot(x, n, torch.bfloat16 if DEVICE == "cpu" else torch.float32), kernels.one_hot(x, n)
    assert found.shape[-1] % 8 == 0
    assert torch.equal(found[..., : n * sites], plain.to(found.dtype))
    assert (found[..., n * sites :] == 0).all()


@pytest.mark.parametrize("shape", [(3, 5, 7), (2, 3, 900)])
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_add_silu(shape, axes):
    h, u = random(*shape), random(*shape[-axes:], dtype=torch.float32)
    expected = silu(h.float() + u)
    found = kernels.add_silu(h, u)
    assert found is h
    torch.testing.assert_close(found.float(), expected, atol=1e-6, rtol=2**-7)  # the interpreter cuts off


@pytest.mark.parametrize("width", [1, 8, 200, 300, 512])
def test_dot(width):
    h, w = random(3, 41, width), random(width, dtype=torch.float32)
    expected = (h.double() @ w.double()).float()
    found = kernels.dot(h, w)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-5)


def test_operations_use_them_without_gradients_alone(monkeypatch):
    used = []
    for name in ("one_hot", "add_silu", "dot"):
        plain = getattr(kernels, name)
        monkeypatch.setattr(kernels, name, lambda *given, n=name, f=plain: (used.append(n), f(*given))[1])
    h, w, b = random(3, 8).as_subclass(OnAGpu), random(1, 8, dtype=torch.float32), random(1, dtype=torch.float32)
    with torch.no_grad():
        x = torch.zeros(3, 4, dtype=torch.uint8, device=DEVICE).as_subclass(OnAGpu)
        assert fused.one_hot(x, 2, torch.bfloat16).shape == (3, 8)
        expected = linear(silu(h.as_subclass(torch.Tensor).float() + w), w, b)[:, 0]
        found = fused.project(fused.add_silu(h.clone(), w[0]), w, b)
        torch.testing.assert_close(found.as_subclass(torch.Tensor), expected, atol=0.02, rtol=0.01)
        assert used == ["one_hot", "add_silu", "dot"]
        fused.add_silu(h.clone(), w[0, :1])  # u is broadcast along the last axis
    fused.project(fused.add_silu(h.clone(), w[0]), w, b)
    assert used == ["one_hot", "add_silu", "dot"]


def test_values_that_are_not_side_by_side_in_memory():
    x = torch.randint(3, (9, 40), dtype=torch.uint8, device=DEVICE).T
    assert torch.equal(kernels.one_hot(x, 2), kernels.one_hot(x.contiguous(), 2))
    h, u, w = random(9, 16), random(16, 9, dtype=torch.float32).T, random(32, dtype=torch.float32)[::2]
    torch.testing.assert_close(kernels.add_silu(h.clone(), u), kernels.add_silu(h.clone(), u.contiguous()))
    torch.testing.assert_close(kernels.dot(random(16, 9).T, w), kernels.dot(random(16, 9).T.contiguous(), w))
    turned = random(16, 9).T.as_subclass(OnAGpu)
    with torch.no_grad():  # cannot be done in place by the kernel, but by torch
        found = fused.add_silu(turned.clone(memory_format=torch.preserve_format), u)
    expected = silu(turned.as_subclass(torch.Tensor).float() + u)
    torch.testing.assert_close(found.as_subclass(torch.Tensor).float(), expected, atol=0.05, rtol=0.02)


def test_other_dtypes_and_shapes(monkeypatch):
    """float32 is left to torch; one state alone has an energy of shape []; an empty batch stays empty."""
    monkeypatch.setattr(kernels, "one_hot", None)
    monkeypatch.setattr(kernels, "add_silu", None)
    w, b = random(1, 8, dtype=torch.float32), random(1, dtype=torch.float32)
    with torch.no_grad():
        assert fused.project(random(8).as_subclass(OnAGpu), w, b).shape == ()
        h = random(3, 8, dtype=torch.float32).as_subclass(OnAGpu)
        assert fused.add_silu(h, w[0]).dtype == torch.float32
        x = torch.zeros(3, 4, dtype=torch.uint8, device=DEVICE).as_subclass(OnAGpu)
        assert fused.one_hot(x, 2, torch.float32).shape == (3, 8)
        assert fused.add_silu(h[:0].bfloat16(), w[0]).shape == (0, 8)
    assert fused.KERNELS not in egm.util.triton._MISSING


@pytest.mark.skipif(DEVICE == "cuda", reason="on a GPU the next test does this")
def test_first_layers_by_the_interpreter(monkeypatch):
    """All kernels in a network of bfloat16, whose rounding changes energies by a tenth; wrong columns change all."""
    used, space = [], Space(s=Categorical(2, shape=(3, 3)), k=Categorical(3, shape=2))
    for name in ("one_hot", "add_silu", "dot"):
        plain = getattr(kernels, name)
        monkeypatch.setattr(
            kernels, name, lambda *given, n=name, f=plain: (used.append(n), f(*given).as_subclass(OnAGpu))[1]
        )
    torch.manual_seed(0)
    network = MLP(space, {"energy": ()}, width=32, depth=2)
    torch.nn.init.normal_(network.get_parameter("heads.0.linear.weight"), std=0.1)
    x = space.reference_sample(50, generator=torch.Generator().manual_seed(0))
    t = torch.rand(50, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        exact = network(x, t)["energy"]
        monkeypatch.setattr(mlp, "MANY_STATES", 1)
        network.bfloat16()
        narrow = {name: v.as_subclass(OnAGpu) for name, v in space.narrowed(x).items()}
        found = network(narrow, t.bfloat16().as_subclass(OnAGpu))["energy"].as_subclass(torch.Tensor)
    assert used == ["one_hot", "one_hot", "add_silu", "dot"]
    assert float((found.float() - exact).square().mean().sqrt()) < 0.2 * float(exact.std())


@needs_cuda
@pytest.mark.parametrize("space", [Space(s=Categorical(2, shape=(3, 3))), Space(x=Real(2), s=Categorical(3, shape=3))])
def test_networks_with_and_without(monkeypatch, space):
    """Rounded networks differ from float32 by rounding alone, with the kernels and without."""
    torch.manual_seed(0)
    network = MLP(space, {"energy": ()}, width=64, depth=3).cuda()
    torch.nn.init.normal_(network.get_parameter("heads.0.linear.weight"), std=0.1)
    generator = torch.Generator("cuda").manual_seed(0)
    state = space.narrowed(space.reference_sample(20 * 300, generator=generator, device="cuda"))
    state = {name: x.reshape(20, 300, *x.shape[1:]) for name, x in state.items()}
    t = torch.rand(300, generator=generator, device="cuda")
    with torch.no_grad():
        exact = network(state, t)["energy"]
        with rounding(t.device, enabled=True):
            fast = network(state, t)["energy"]
            monkeypatch.setattr(egm.util.triton, "_MISSING", {fused.KERNELS})
            plain = network(state, t)["energy"]
    scale = float(exact.std())
    assert float((fast - exact).square().mean().sqrt()) < 0.02 * scale
    assert float((plain - exact).square().mean().sqrt()) < 0.02 * scale
