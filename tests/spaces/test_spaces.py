"""Spaces: states under any batch shape, latent coordinates, the reference law, and errors that name the fix."""

import math

import pytest
import torch
from scipy import stats as scipy_stats

from egm import Categorical, Real, Space
from support.stats import assert_mean

SPACE = Space(
    v=Real(2, loc=1.0, scale=3.0),
    p=Real(3, constraint="simplex"),
    x=Real((3, 2), scale=2.0, centered=True),
    h=Categorical([2, 3]),
)


def test_states_survive_a_round_trip_under_any_batch_shape():
    state = SPACE.reference_sample(12, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert SPACE.check(state) == (12,)
    for batch in ((12,), (3, 4), (2, 3, 2)):
        shaped = {name: x.reshape(*batch, *x.shape[1:]) for name, x in state.items()}
        assert SPACE.check(shaped) == batch
        latent = SPACE.to_latent(shaped)
        for name, x in SPACE.from_latent(latent).items():
            torch.testing.assert_close(x, shaped[name])
        assert SPACE.log_det(latent).shape == batch
        torch.testing.assert_close(SPACE.reference_log_prob(shaped).flatten(), SPACE.reference_log_prob(state))
    single = {name: x[0] for name, x in state.items()}
    assert SPACE.check(single) == ()
    assert SPACE.log_det(SPACE.to_latent(single)).shape == ()


def test_reference_log_prob_is_the_density_of_reference_sample():
    """E_ref[q/p_ref] = 1 for another density q; a wrong scale, Jacobian or symbol count would show."""
    space = Space(a=Real((), loc=0.5, scale=2.0), b=Real((), constraint="positive"), h=Categorical(3, ()))
    state = space.reference_sample(40_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    log_q = -0.5 * (state["a"] - 0.2).square() - 0.5 * math.log(2 * math.pi)  # N(0.2, 1)
    log_q = log_q + 0.5 * torch.log(state["b"]) - 2 * state["b"] - math.lgamma(1.5) + 1.5 * math.log(2)  # Gamma(1.5, 2)
    q_h = torch.tensor([0.5, 0.2, 0.3], dtype=torch.float64)[state["h"]]
    assert_mean((log_q - space.reference_log_prob(state)).exp() * q_h, 1.0)


def test_reference_log_prob_of_known_densities():
    space = Space(
        a=Real((), loc=0.5, scale=2.0), b=Real((), loc=0.3, scale=0.7, constraint="positive"), h=Categorical(3, ())
    )
    state = space.reference_sample(20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = scipy_stats.norm.logpdf(state["a"], 0.5, 2.0) - math.log(3)
    expected = expected + scipy_stats.lognorm.logpdf(state["b"], 0.7, scale=math.exp(0.3))
    assert space.reference_log_prob(state).tolist() == pytest.approx(expected.tolist())


@pytest.mark.parametrize(
    "variable",
    [Real(2, loc=0.3, scale=[0.6, 1.4], constraint=(-2.0, 5.0)), Real(4, loc=0.2, scale=1.3, constraint="simplex")],
    ids=["interval", "simplex"],
)
def test_reference_log_prob_changes_variables(variable):
    """Log p_ref(x) = log N(z; 0, I) − log |det ∂x/∂z|, the determinant by automatic differentiation."""
    latent = variable.noise((10,), generator=torch.Generator().manual_seed(0), dtype=torch.float64)

    def coordinates(z):
        return variable.from_latent(z)[: len(z)]  # on a simplex, all entries but the last

    expected = [
        scipy_stats.norm.logpdf(z).sum() - float(torch.autograd.functional.jacobian(coordinates, z).slogdet()[1])  # type: ignore[union-attr]
        for z in latent
    ]
    got = Space(x=variable).reference_log_prob({"x": variable.from_latent(latent)})
    assert got.tolist() == pytest.approx(expected)


def test_log_det_of_symbols_alone_is_zero():
    space = Space(h=Categorical(2, 3))
    latent = {"h": torch.zeros(4, 3, dtype=torch.int64)}
    assert space.log_det(latent).tolist() == [0.0] * 4


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (lambda s: s.pop("h"), ValueError, r"needs the variables \['v', 'p', 'x', 'h'\], got \['v', 'p', 'x'\]"),
        (lambda s: s.update(w=s["v"]), ValueError, "got .*'w'"),
        (lambda s: s.update(v=s["v"][:2]), ValueError, "same leading batch shape"),
        (lambda s: s.update(v=s["v"][..., :1]), ValueError, r"'v' needs shape \[..., 2\]"),
        (lambda s: s.update(v=[1.0, 2.0]), TypeError, "'v' must be a torch.Tensor, got list"),
        (lambda s: s.update(h=s["h"] + 5), ValueError, "'h' holds the symbol"),
    ],
)
def test_bad_states_name_the_variable(change, error, message):
    state = SPACE.reference_sample(4, generator=torch.Generator().manual_seed(0))
    change(state)
    with pytest.raises(error, match=message):
        SPACE.check(state)


def test_masks_are_legal_only_where_asked():
    state = SPACE.reference_sample(4, generator=torch.Generator().manual_seed(0))
    state["h"][0] = 3
    assert SPACE.check(state, masked=True) == (4,)
    with pytest.raises(ValueError, match="'h' holds the symbol 3"):
        SPACE.check(state)


def test_bad_spaces_name_the_fix():
    with pytest.raises(ValueError, match="at least one variable"):
        Space()
    with pytest.raises(TypeError, match=r"'x' must be egm\.Real or egm\.Categorical, got int"):
        Space(x=3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="by name"):
        Space(Real(2))  # type: ignore[call-arg]


def test_spaces_are_values():
    assert Space(a=Real(2), b=Categorical(2)) == Space(a=Real(2), b=Categorical(2))
    assert Space(a=Real(2), b=Categorical(2)) != Space(b=Categorical(2), a=Real(2))
    assert repr(Space(b=Categorical(2, 3))) == "Space(b=Categorical(n=2, shape=(3,)))"
    assert list(SPACE.real) == ["v", "p", "x"]
    assert list(SPACE.categorical) == ["h"]
