"""Jacobian determinants of a flow's numerical steps, against maps whose Jacobians are known.

A step from t to r is x ↦ k x + (α_r − k α_t) x̂_1(x) with k = σ_r/σ_t, so that for a linear denoiser x̂_1 = W x + c the
Jacobian is k I + (α_r − k α_t) W.
"""

import pytest
import torch

from egm.paths import VE, VP, CondOT, ProductPath
from egm.processes import Flow
from egm.simulation.flow_map import flow_step
from egm.spaces import Categorical, Real, Space

DOUBLE = torch.float64
PATHS = {"condot": CondOT, "ve": lambda v: VE(v, sigma_min=0.2), "vp": VP}
N = 6


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(shape, generator=seeded(seed), dtype=DOUBLE)


def coefficients(path, t, r):
    """k and α_r − k α_t, [n, 1, 1]."""
    k = (path.variance(r) / path.variance(t)).sqrt()
    return k[:, None, None], (path.alpha(r) - k * path.alpha(t))[:, None, None]


T = torch.linspace(0.1, 0.7, N, dtype=DOUBLE)
R = T + torch.linspace(0.15, 0.25, N, dtype=DOUBLE)


@pytest.mark.parametrize("last", [False, True], ids=["inside", "to 1"])
@pytest.mark.parametrize("kind", PATHS)
def test_two_coupled_variables_under_a_linear_network(kind, last):
    space = Space(a=Real(2), b=Real((1, 2)))
    path = ProductPath(space, {name: PATHS[kind](v) for name, v in space.real.items()})
    flows = {name: Flow(path[name]) for name in space}  # type: ignore[arg-type]
    matrix, shift = torch.eye(4, dtype=DOUBLE) + 0.3 * normal(4, 4, seed=1), normal(4, seed=2)
    x = normal(N, 4, seed=3)
    r = torch.ones(N, dtype=DOUBLE) if last else R

    def predict(state, t):
        joined = torch.cat([state["a"], state["b"].flatten(1)], 1)
        denoised = t[:, None] * joined @ matrix.T + shift
        return {"b": denoised[:, 2:].reshape(N, 1, 2), "a": denoised[:, :2]}

    prediction, moved, log_det, regular = flow_step(predict, flows, {"a": x[:, :2], "b": x[:, 2:].view(N, 1, 2)}, T, r)
    k, gain = coefficients(path["a"], T, r)
    jacobian = k * torch.eye(4, dtype=DOUBLE) + gain * T[:, None, None] * matrix
    expected = (k[:, 0] * x) + gain[:, 0] * (T[:, None] * x @ matrix.T + shift)
    torch.testing.assert_close(torch.cat([moved["a"], moved["b"].flatten(1)], 1), expected)
    torch.testing.assert_close(log_det, torch.linalg.slogdet(jacobian).logabsdet)
    assert log_det.dtype == DOUBLE
    assert regular.tolist() == (torch.linalg.eigvalsh(jacobian + jacobian.mT)[:, 0] > 0).tolist()
    # The blocks by themselves would not do.
    blocks = torch.stack([torch.linalg.slogdet(jacobian[:, s, s]).logabsdet for s in (slice(2), slice(2, 4))]).sum(0)
    assert float((log_det - blocks).abs().max()) > 1e-3
    assert all(not value.requires_grad for value in (*prediction.values(), *moved.values(), log_det))


def test_a_nonlinear_network():
    """Against differences, draw by draw; each draw has its own times."""
    path = ProductPath(Space(x=Real(3)))
    flows, matrix = {"x": Flow(path["x"])}, normal(3, 3, seed=1)  # type: ignore[arg-type]
    x, h = normal(N, 3, seed=2), 1e-5

    def predict(state, t):
        return {"x": torch.sin(state["x"] @ matrix.T + t[:, None]) + 0.2 * state["x"].square()}

    def step(at):
        return flow_step(predict, flows, {"x": at}, T, R)

    columns = [(step(x + h * e)[1]["x"] - step(x - h * e)[1]["x"]) / (2 * h) for e in torch.eye(3, dtype=DOUBLE)]
    jacobian = torch.stack(columns, -1)
    torch.testing.assert_close(step(x)[2], torch.linalg.slogdet(jacobian).logabsdet, atol=1e-8, rtol=1e-6)


def test_other_variables_enter_and_are_not_differentiated():
    space = Space(x=Real(2), y=Real(1), s=Categorical(2))
    path = ProductPath(space)
    x = {"x": normal(N, 2, seed=1), "y": normal(N, 1, seed=2), "s": torch.tensor([0, 1, 2, 0, 1, 2])}
    matrix = normal(2, 2, seed=3)
    scale = 0.3 * (1 + x["y"].square() + x["s"][:, None])

    def predict(state, t):
        factor = 0.3 * (1 + state["y"].square() + state["s"][:, None])
        return {
            "x": factor * (state["x"] @ matrix.T),
            "y": state["y"] * state["x"][:, :1],
            "s": torch.softmax(torch.cat([state["x"][:, :1], state["y"]], 1), -1),
        }

    prediction, moved, log_det, _ = flow_step(predict, {"x": Flow(path["x"])}, x, T, R)  # type: ignore[arg-type]
    assert list(moved) == ["x"]
    k, gain = coefficients(path["x"], T, R)
    jacobian = k * torch.eye(2, dtype=DOUBLE) + gain * scale[..., None] * matrix
    torch.testing.assert_close(log_det, torch.linalg.slogdet(jacobian).logabsdet)
    for name, value in predict(x, T).items():
        torch.testing.assert_close(prediction[name], value)


def test_variables_that_do_not_see_each_other():
    space = Space(x=Real(2), y=Real(()))
    path = ProductPath(space)
    flows = {name: Flow(path[name]) for name in space}  # type: ignore[arg-type]
    x = {"x": normal(N, 2), "y": normal(N, seed=1)}
    _, _, log_det, regular = flow_step(lambda x, t: {"x": torch.ones(N, 2), "y": 2 * x["y"]}, flows, x, T, R)
    k, gain = (value[:, 0, 0] for value in coefficients(path["x"], T, R))
    torch.testing.assert_close(log_det, 2 * k.log() + (k + 2 * gain).log())
    assert bool(regular.all())


def test_a_centred_variable_is_measured_on_its_subspace():
    """In orthonormal coordinates Q of it the Jacobian is Qᵀ (k I + gain W) Q; W itself does not respect it."""
    space = Space(x=Real((3, 2), centered=True))
    path = ProductPath(space)
    matrix = 0.5 * torch.eye(6, dtype=DOUBLE) + 0.3 * normal(6, 6, seed=1)
    x = space.real["x"].project(normal(N, 3, 2, seed=2))

    def predict(state, t):
        return {"x": (state["x"].reshape(N, 6) @ matrix.T + 1.0).reshape(N, 3, 2)}

    _, moved, log_det, _ = flow_step(predict, {"x": Flow(path["x"])}, {"x": x}, T, R)  # type: ignore[arg-type]
    centre = torch.kron(torch.full((3, 3), 1 / 3, dtype=DOUBLE), torch.eye(2, dtype=DOUBLE))
    basis = torch.linalg.eigh(centre).eigenvectors[:, :4]  # eigenvalue zero: no centre of mass
    k, gain = coefficients(path["x"], T, R)
    inside = basis.T @ (k * torch.eye(6, dtype=DOUBLE) + gain * matrix) @ basis
    torch.testing.assert_close(log_det, torch.linalg.slogdet(inside).logabsdet)
    torch.testing.assert_close(moved["x"].mean(1), torch.zeros(N, 2, dtype=DOUBLE))


def test_maps_that_may_fold_are_told_draw_by_draw():
    """The symmetric part must be positive definite: a half turn has a determinant of one and fails."""
    path = ProductPath(Space(x=Real(2)))
    flow = {"x": Flow(path["x"])}  # type: ignore[arg-type]
    t, r = torch.full((4,), 0.5, dtype=DOUBLE), torch.full((4,), 0.75, dtype=DOUBLE)  # k = ½, gain = ½
    turn = torch.tensor([[0.0, -4.0], [4.0, 0.0]], dtype=DOUBLE)
    half = torch.tensor([[-3.0, 0.0], [0.0, -3.0]], dtype=DOUBLE)
    fold = torch.tensor([[1.0, 0.0], [0.0, -3.0]], dtype=DOUBLE)
    shear = torch.tensor([[1.0, 5.0], [0.0, 1.0]], dtype=DOUBLE)
    matrices = torch.stack([turn, half, fold, shear])

    def predict(state, t):
        return {"x": torch.einsum("nij,nj->ni", matrices, state["x"])}

    _, _, log_det, regular = flow_step(predict, flow, {"x": normal(4, 2)}, t, r)
    torch.testing.assert_close(log_det.exp(), torch.tensor([4.25, 1.0, 1.0, 1.0], dtype=DOUBLE))
    assert regular.tolist() == [True, False, False, False]


def test_single_precision_states_have_determinants_in_double():
    path = ProductPath(Space(x=Real(2)))
    flows, x = {"x": Flow(path["x"])}, {"x": normal(N, 2).float()}  # type: ignore[arg-type]
    _, moved, log_det, _ = flow_step(lambda x, t: {"x": 0.5 * x["x"]}, flows, x, T.float(), R.float())
    k, gain = (value[:, 0, 0] for value in coefficients(path["x"], T, R))
    assert moved["x"].dtype == torch.float32
    assert log_det.dtype == DOUBLE
    torch.testing.assert_close(log_det, 2 * (k + 0.5 * gain).log(), atol=1e-6, rtol=1e-5)
