"""The Triton kernel computes a perceptron's scalar, and networks rounded to bfloat16 use it."""

import pytest
import torch
from torch.nn.functional import silu

import egm.util.triton
from egm.networks import mlp
from egm.networks.mlp import MLP
from egm.spaces import Categorical, Real, Space
from support.gpu_cases import DEVICE, OnAGpu

kernels = pytest.importorskip("egm.networks.perceptron_kernels", reason="no Triton")
SPACE = Space(s=Categorical(2, shape=(3, 3)))
DTYPE = torch.bfloat16 if DEVICE == "cuda" else torch.float32  # the interpreter has no products of bfloat16


def random(*shape, scale=1.0):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(DEVICE)


def parts(batch, times, sites, n, width, layers, dtype=torch.uint8):
    """x, n, a, c, weights, biases, head, last."""
    x = torch.randint(n + 1, (*batch, sites), generator=torch.Generator().manual_seed(0), dtype=dtype).to(DEVICE)
    a, weights = random(width, n * sites).to(DTYPE), random(layers, width, width, scale=width**-0.5).to(DTYPE)
    return x, n, a, random(*times, width), weights, random(layers, width), random(width), random(1)


def plain(x, n, a, c, weights, biases, head, last):
    """The same in float64, without rounding, and the sum of |w h| of the last layer, the unit of rounding."""
    present = (x[..., None] == torch.arange(n, device=x.device)).flatten(-2).double()
    h = silu(present @ a.double().T + c.double())
    for w, b in zip(weights.double(), biases.double(), strict=True):
        h = silu(h @ w.T + b)
    return h @ head.double() + last.double(), h.abs() @ head.double().abs()


@pytest.mark.parametrize(
    ("batch", "times", "sites", "n", "width", "layers"),
    [
        ((130, 3), (3,), 9, 2, 32, 2),  # the last program of a time has two states
        ((200,), (), 25, 2, 16, 1),
        ((2, 65, 2), (2,), 4, 3, 64, 2),
        ((64, 2, 3), (2, 3), 1, 1, 128, 2),  # two pieces
        ((7, 4), (7, 4), 5, 4, 16, 2),
        ((70, 1), (1,), 40, 2, 256, 2),
    ],
)
def test_scalars(batch, times, sites, n, width, layers):
    given = parts(batch, times, sites, n, width, layers)
    found = kernels.scalars(*given)
    exact, size = plain(*given)
    assert found.dtype == torch.float32
    assert found.shape == batch
    unit = (100 if DEVICE == "cpu" else 0.5) * torch.finfo(DTYPE).eps
    assert ((found - exact).abs() < unit * size).all()
    assert exact.std() > 10 * unit * size.mean()  # so that a wrong symbol is seen


def test_symbols_of_any_kind_and_strides():
    given = parts((70, 3), (3,), 9, 2, 16, 2)
    x, n, a, c, *others = given
    turned = x.transpose(0, 1).contiguous().transpose(0, 1)
    assert not turned.is_contiguous()
    found = kernels.scalars(*given)
    assert torch.equal(kernels.scalars(turned, n, a, c, *others), found)
    assert torch.equal(kernels.scalars(x.long(), n, a, c.T.contiguous().T, *others), found)


def network(space=SPACE, outputs=("energy",), **options):
    torch.manual_seed(0)
    made = MLP(space, dict.fromkeys(outputs, ()), **{"width": 32, "depth": 3} | options)
    for layer in made.hidden:
        torch.nn.init.normal_(layer.get_parameter("weight"), std=2 / made.width**0.5)  # so that states differ
    for head in made.heads:
        torch.nn.init.normal_(head.get_parameter("linear.weight"), std=0.1)
        torch.nn.init.normal_(head.get_parameter("linear.bias"))
    return made.to(DEVICE)


def draw(space, *batch):
    generator = torch.Generator(DEVICE).manual_seed(0)
    state = space.reference_sample(torch.Size(batch).numel(), generator=generator, device=DEVICE)
    for name, x in state.items():
        if name in space.categorical:
            hidden = torch.rand(x.shape, generator=generator, device=DEVICE) < 0.3
            state[name] = x.masked_fill(hidden, space.categorical[name].size)
    return {name: x.reshape(*batch, *x.shape[1:]) for name, x in space.narrowed(state).items()}


def rounded():
    """What `rounding` does on a GPU."""
    return torch.autocast(DEVICE, dtype=torch.bfloat16, cache_enabled=False)


def on_a_gpu(state):
    return {name: x.as_subclass(OnAGpu) for name, x in state.items()}


@pytest.fixture
def used(monkeypatch):
    """How often the kernel has run."""
    counts, run, missing = [], kernels.scalars, egm.util.triton._MISSING

    def scalars(x, n, a, *others):
        assert a.dtype == torch.bfloat16
        counts.append(1)
        return run(x, n, a.to(DTYPE), *others)

    monkeypatch.setattr(kernels, "scalars", scalars)
    yield counts
    assert mlp.KERNELS not in missing


def spread(energy):
    return float(energy.std())


def difference(a, b):
    return float((a.as_subclass(torch.Tensor) - b.as_subclass(torch.Tensor)).square().mean().sqrt())


@pytest.mark.parametrize("depth", [2, 3])
@pytest.mark.parametrize("shape", [(70, 3), (2, 50, 3), (100,)])
def test_networks_use_it(used, shape, depth):
    """Rounding changes energies by a fraction of their spread; wrong weights would change them all."""
    body, state = network(depth=depth), draw(SPACE, *shape)
    t = torch.rand(shape[-1] if len(shape) > 1 else (), generator=torch.Generator().manual_seed(1)).to(DEVICE)
    with torch.no_grad():
        exact = body(state, t)["energy"]
        assert not used
        with rounded():
            found = body(on_a_gpu(state), t)["energy"]
    assert len(used) == 1
    assert found.shape == shape
    assert found.dtype == torch.float32
    assert difference(found, exact) < 0.03 * spread(exact)


@pytest.mark.parametrize(
    ("options", "batch", "times"),
    [
        ({"space": Space(x=Real(2), s=Categorical(2, shape=3))}, (70, 3), (3,)),
        ({"space": Space(s=Categorical(2, shape=3), k=Categorical(3, shape=2))}, (70, 3), (3,)),
        ({"space": Space(s=Categorical(5, shape=3))}, (70, 3), (3,)),  # embedded: many symbols
        ({"space": Space(s=Categorical(2, shape=33))}, (70, 3), (3,)),  # many columns
        ({"outputs": ("energy", "other")}, (70, 3), (3,)),
        ({"width": 48}, (70, 3), (3,)),
        ({"depth": 1}, (70, 3), (3,)),
        ({"depth": 4}, (70, 3), (3,)),
        ({}, (31, 3), (3,)),  # few states share a time
        ({}, (70, 3), (70, 3)),
        ({}, (70, 3), (1,)),  # broadcast along the last axis
        ({}, (70, 3), (70, 1)),
        ({}, (0, 3), (3,)),
    ],
)
def test_other_networks_and_shapes_do_without(used, options, batch, times):
    body = network(**options)
    state, t = draw(body.space, *batch), torch.full(times, 0.3, device=DEVICE)
    with torch.no_grad(), rounded():
        found = body(on_a_gpu(state), t)
    assert not used
    assert all(energy.shape == batch for energy in found.values())


def test_neither_gradients_nor_other_dtypes(used):
    body, state, t = network(), draw(SPACE, 70, 3), torch.rand(3, device=DEVICE)
    with torch.no_grad():
        body(on_a_gpu(state), t)  # float32
    with rounded():
        body(on_a_gpu(state), t)["energy"].sum().backward()
    assert not used
    assert body.first.weight.grad is not None


def test_plain_torch_takes_its_place(monkeypatch, used):
    body, state, t = network(), on_a_gpu(draw(SPACE, 70, 3)), torch.rand(3, device=DEVICE)
    with torch.no_grad(), rounded():
        found = body(state, t)["energy"]
        monkeypatch.setattr(egm.util.triton, "_MISSING", set())
        monkeypatch.setattr(kernels, "scalars", None)
        with pytest.warns(RuntimeWarning, match="perceptron_kernels do not work here"):
            expected = body(state, t)["energy"]
    assert len(used) == 1
    assert difference(found, expected) < 0.03 * spread(expected)


@pytest.mark.skipif(DEVICE == "cpu", reason="no CUDA")
@pytest.mark.parametrize("width", [16, 64, 256])
@pytest.mark.parametrize("depth", [2, 3])
def test_rounded_networks_with_and_without(monkeypatch, used, width, depth):
    """Both differ from float32 by rounding alone, and the kernel by no more; also in a CUDA graph."""
    body, state, t = network(width=width, depth=depth), draw(SPACE, 200, 30), torch.rand(30, device="cuda")
    with torch.no_grad():
        exact = body(state, t)["energy"]
        with rounded():
            fast = body(state, t)["energy"]
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                recorded = body(state, t)["energy"]
            graph.replay()
            assert len(used) == 2
            monkeypatch.setattr(egm.util.triton, "_MISSING", {mlp.KERNELS})
            without = body(state, t)["energy"]
    assert len(used) == 2
    assert torch.equal(fast, recorded)
    assert difference(fast, exact) < 1.2 * difference(without, exact)
    assert difference(without, exact) < 0.03 * spread(exact)
