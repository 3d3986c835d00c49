"""The Triton kernels of lattices against the blocks they replace: on the CPU in Triton's interpreter, in float32."""

from types import SimpleNamespace

import pytest
import torch
from torch.nn.functional import layer_norm

import egm.util.triton
from egm.networks import LatticeConv, lattice
from egm.spaces import Categorical, Real, Space

kernels = pytest.importorskip("egm.networks.lattice_kernels", reason="no Triton")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
#: rows, columns, width, kernel: one tile and several, with and without a remainder; a neighbourhood that wraps twice
SHAPES = [(4, 4, 16, 3), (5, 3, 32, 3), (12, 13, 16, 3), (16, 16, 16, 1), (3, 3, 16, 5)]
N = 5


@pytest.fixture(autouse=True)
def precise():
    """Products and convolutions of float32 tensors are not rounded on a GPU either."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32 = before[1]


@pytest.fixture
def served(monkeypatch):
    """Networks use the Triton kernels on the CPU as well, whose interpreter has no bfloat16."""
    monkeypatch.setattr(LatticeConv, "_has_kernels", lambda self, h: True)
    monkeypatch.setattr(lattice, "_WORKS", {})
    used, plain_blocks = [], kernels.normalised_blocks

    def blocks(h, *given):
        used.append(h.dtype)
        return plain_blocks(h if DEVICE == "cuda" else h.float(), *given)

    monkeypatch.setattr(kernels, "normalised_blocks", blocks)
    return used


def case(shape, depth=2):
    rows, columns, width, kernel = shape
    torch.manual_seed(0)
    space = Space(s=Categorical(2, shape=(rows, columns)))
    body = LatticeConv(space, {"s": (rows, columns, 2)}, width=width, depth=depth, kernel=kernel).to(DEVICE)
    h = torch.randn(N, rows, columns, width, device=DEVICE, requires_grad=True)
    return body, h, body.time(torch.rand(N, device=DEVICE))


def fused(body, h, time):
    parts = [(b.time(time), b.conv, b.mean.weight, b.out) for b in body.blocks]
    return kernels.normalised_blocks(h, parts, body.kernel)


def plain(body, h, time):
    for block in body.blocks:
        h = block(h, time, torch.Size([N]))
    return layer_norm(h, h.shape[-1:])


def distance(a, b):
    return float((a - b).detach().norm() / b.detach().norm())


@pytest.mark.parametrize("shape", SHAPES)
def test_blocks_and_their_gradients(shape):
    body, h, time = case(shape)
    tolerance = 1e-5 if DEVICE == "cpu" else 1e-4  # tensor cores add products of float32 in threes
    found, expected = fused(body, h, time), plain(body, h, time)
    assert distance(found, expected) < tolerance
    probe = torch.randn_like(found)
    inputs = [h, *body.blocks.parameters()]
    gradients = [torch.autograd.grad((x * probe).sum(), inputs, retain_graph=True) for x in (found, expected)]
    for name, a, b in zip(["h", *dict(body.blocks.named_parameters())], *gradients, strict=True):
        assert distance(a, b) < 5 * tolerance, name
        assert bool(b.any()), name


def test_without_gradients_nothing_is_kept():
    body, h, time = case(SHAPES[0])
    with torch.no_grad():
        found = fused(body, h, time)
    assert found.grad_fn is None
    assert distance(found, plain(body, h, time)) < 1e-4


def test_more_states_than_chunks(monkeypatch):
    """The gradient of the weights is summed in chunks, the last of which is not full."""
    monkeypatch.setattr(kernels, "CHUNKS", 2)
    test_blocks_and_their_gradients(SHAPES[0])


def test_neighbours_are_those_of_a_torus():
    near = kernels.neighbours(2, 3, 3, torch.device("cpu"))
    assert near.shape == (9, 6)
    assert near[4].tolist() == [0, 1, 2, 3, 4, 5]
    assert near[5].tolist() == [1, 2, 0, 4, 5, 3]  # to the right
    assert near[1].tolist() == near[7].tolist() == [3, 4, 5, 0, 1, 2]  # up is down on two rows
    for k in range(9):  # the opposite of neighbour k is neighbour 8 − k
        assert near[8 - k][near[k].long()].tolist() == list(range(6))


def test_a_network_uses_them_where_its_blocks_are_rounded(monkeypatch, served):
    """Also with an axis for symmetries, over which t broadcasts."""
    body, _, _ = case(SHAPES[1])
    torch.nn.init.normal_(body.get_parameter("heads.0.linear.weight"))
    state, t = {"s": torch.randint(0, 3, (2, N, 5, 3), device=DEVICE)}, torch.rand(N, device=DEVICE)
    with monkeypatch.context() as plainly:
        plainly.setattr(LatticeConv, "_block_dtype", lambda self: torch.float32)
        plainly.setattr(LatticeConv, "_has_kernels", lambda self, h: False)
        expected = body(state, t)["s"]
    monkeypatch.setattr(kernels, "try_out", lambda *given: None)
    monkeypatch.setattr(LatticeConv, "_block_dtype", lambda self: torch.bfloat16)
    assert 0 < distance(body(state, t)["s"], expected) < 0.03
    assert served == [torch.bfloat16]
    monkeypatch.setattr(egm.util.triton, "_MISSING", {lattice.KERNELS})
    assert 0 < distance(body(state, t)["s"], expected) < 0.03
    assert len(served) == 1


def test_scalars_of_symbols_use_them_in_float32(monkeypatch, served):
    """An energy is not rounded, and neither is its gradient."""
    torch.manual_seed(0)
    body = LatticeConv(Space(s=Categorical(2, shape=(5, 3))), {"energy": ()}, width=16, depth=2).to(DEVICE)
    torch.nn.init.normal_(body.get_parameter("heads.0.linear.weight"))
    state, t = {"s": torch.randint(0, 3, (2, N, 5, 3), device=DEVICE)}, torch.rand(N, device=DEVICE)

    def both():
        energy = body(state, t)["energy"]
        return energy, torch.autograd.grad(energy.square().sum(), list(body.parameters()))

    found = both()
    assert set(served) == {torch.float32}
    monkeypatch.setattr(LatticeConv, "_has_kernels", lambda self, h: False)
    before = len(served)
    expected = both()
    assert len(served) == before
    assert distance(found[0], expected[0]) < 1e-5
    for a, b in zip(found[1], expected[1], strict=True):
        assert distance(a, b) < 1e-4


@pytest.mark.parametrize(("outputs", "dtype"), [({"s": (5, 3, 2)}, torch.bfloat16), ({"energy": ()}, torch.float32)])
def test_only_logits_are_rounded(monkeypatch, outputs, dtype):
    body = LatticeConv(Space(s=Categorical(2, shape=(5, 3))), outputs, width=16, depth=2)
    weight = SimpleNamespace(is_cuda=True, dtype=torch.float32)
    monkeypatch.setattr(body.blocks[0], "get_parameter", lambda name: weight)
    assert body._block_dtype() == dtype


def test_reals_and_a_cpu_do_without():
    symbols, reals = Categorical(2, shape=(4, 4)), Real((4, 4))

    def served(variable, *, is_cuda):
        body = LatticeConv(Space(x=variable), {"energy": ()}, width=16, depth=1)
        return body._has_kernels(SimpleNamespace(is_cuda=is_cuda))  # type: ignore[arg-type]

    assert served(symbols, is_cuda=True)
    assert not served(symbols, is_cuda=False)
    assert not served(reals, is_cuda=True)  # a flow differentiates them twice


@pytest.mark.parametrize("direction", ["forwards", "backwards"])
def test_kernels_that_do_not_compile_are_replaced_with_one_warning(monkeypatch, served, direction):
    body, _, _ = case(SHAPES[1])
    torch.nn.init.normal_(body.get_parameter("heads.0.linear.weight"))
    state, t = {"s": torch.randint(0, 3, (N, 5, 3), device=DEVICE)}, torch.rand(N, device=DEVICE)
    monkeypatch.setattr(LatticeConv, "_block_dtype", lambda self: torch.bfloat16)
    monkeypatch.setattr(egm.util.triton, "_MISSING", {lattice.KERNELS})
    expected = body(state, t)["s"]
    monkeypatch.setattr(egm.util.triton, "_MISSING", set())

    def broken(*given, **options):
        raise RuntimeError("no C compiler\nand more")

    if direction == "forwards":
        monkeypatch.setattr(kernels, "normalised_blocks", broken)
    else:
        monkeypatch.setattr(torch, "zeros", zeros_in_float32(torch.zeros))  # the interpreter knows no bfloat16
        monkeypatch.setattr(kernels, "_backward_weights", {(9, kernels.CHUNKS): broken})
    with pytest.warns(RuntimeWarning, match=r"lattice_kernels do not work here.*\(no C compiler\)"):
        found = body(state, t)["s"]
    assert torch.equal(found, expected)
    assert torch.equal(body(state, t)["s"], expected)  # without another warning


def zeros_in_float32(zeros):
    return lambda *shape, **options: zeros(*shape, **{**options, "dtype": torch.float32})


def test_trying_out_is_forwards_and_backwards(monkeypatch):
    seen, launch = [], kernels._launch
    monkeypatch.setattr(torch, "zeros", zeros_in_float32(torch.zeros))
    monkeypatch.setattr(
        kernels, "_launch", lambda kernel, *given, **o: (seen.append(kernel), launch(kernel, *given, **o))
    )
    kernels.try_out((5, 3), 16, 3, torch.zeros(0, device=DEVICE))
    assert set(seen) == {
        kernels._forward, kernels._backward_sites, kernels._backward_neighbours, kernels._backward_weights
    }  # fmt: skip


def test_other_widths_do_without(monkeypatch, served):
    body, _, _ = case((4, 4, 24, 3))
    monkeypatch.setattr(LatticeConv, "_block_dtype", lambda self: torch.bfloat16)
    state, t = {"s": torch.randint(0, 3, (N, 4, 4), device=DEVICE)}, torch.rand(N, device=DEVICE)
    assert body(state, t)["s"].shape == (N, 4, 4, 2)
    assert not served
