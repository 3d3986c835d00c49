"""Variables: bijections and their Jacobians against autograd, centring, and errors that name the fix."""

import math

import numpy as np
import pytest
import torch

from egm import Categorical, Real
from support.stats import assert_counts, assert_mean, assert_variance

LATENTS = {
    "plain": Real(3),
    "scaled": Real(3, loc=1.5, scale=2.5),
    "arrays": Real((2, 2), loc=[[1.0, 2.0], [3.0, 4.0]], scale=[0.5, 2.0]),
    "positive": Real(3, scale=0.7, constraint="positive"),
    "interval": Real(3, loc=0.3, constraint=(-2.0, 5.0)),
    "simplex": Real(4, scale=1.3, constraint="simplex"),
    "simplices": Real((2, 3), constraint="simplex"),
    "scalar": Real((), scale=3.0, constraint="positive"),
}


@pytest.mark.parametrize("variable", LATENTS.values(), ids=LATENTS)
def test_bijections_invert_and_their_jacobians_match_autograd(variable):
    z = variable.noise((20,), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    x = variable.from_latent(z)
    variable.check(x, "x")
    assert x.shape == (20, *variable.shape)
    torch.testing.assert_close(variable.to_latent(x), z)
    free = variable.constraint == "simplex"

    def coordinates(flat):
        x = variable.from_latent(flat.reshape(variable.latent_shape))
        return (x[..., :-1] if free else x).reshape(-1)  # densities on a simplex refer to all but the last entry

    log_det = [torch.autograd.functional.jacobian(coordinates, one.reshape(-1)).slogdet()[1] for one in z]  # type: ignore[union-attr]
    torch.testing.assert_close(variable.log_det(z), torch.stack(log_det))


def test_centred_variables_live_on_their_subspace():
    variable = Real((4, 2), scale=2.0, centered=True)
    assert variable.dimension == 6
    z = variable.noise((20_000,), generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert float(z.mean(-2).abs().max()) < 1e-12
    assert_variance(z, 0.75)  # a standard Gaussian projected off one of four directions
    assert_mean(z.square().sum((-1, -2)), 6)
    torch.testing.assert_close(variable.log_det(z[:2]), torch.full((2,), 6 * math.log(2.0), dtype=torch.float64))
    # log N in orthonormal coordinates: only d enters, never the two frozen directions
    expected = -0.5 * (z[0].square().sum() / 4 + 6 * math.log(2 * math.pi * 4))
    torch.testing.assert_close(variable.gaussian_log_prob(z[0], 4.0), expected)


@pytest.mark.parametrize("constraint", [None, "positive", (0.0, 1.0)])
def test_arrays_follow_the_dtype_and_device_of_the_latent(constraint):
    variable = Real(2, loc=[0.1, 0.2], scale=[0.1, 3.0], constraint=constraint)
    # single precision comes first: a constant kept from it must not serve double precision
    for like in (torch.zeros(2), torch.zeros(2, dtype=torch.float64), torch.zeros(2, device="meta")):
        for result in (variable.from_latent(like), variable.to_latent(like), variable.log_det(like)):
            assert (result.dtype, result.device) == (like.dtype, like.device)
    if constraint is None:
        assert variable.from_latent(torch.zeros(2, dtype=torch.float64)).tolist() == [0.1, 0.2]
        assert variable.from_latent(torch.ones(2, dtype=torch.float64)).tolist() == [0.2, 3.2]


def test_symbols_may_differ_by_site():
    variable = Categorical([2, 3, 5])
    assert (variable.shape, variable.size, variable.mask, variable.sites) == ((3,), 5, 5, 3)
    assert variable.log_volume == pytest.approx(math.log(30))
    x = variable.uniform((30_000,), generator=torch.Generator().manual_seed(0))
    for site, n in enumerate((2, 3, 5)):
        assert_counts(torch.bincount(x[:, site], minlength=5), [1 / n] * n + [0] * (5 - n))
    assert variable.legal(x).tolist() == [[k < n for k in range(5)] for n in (2, 3, 5)]
    assert Categorical([4, 4]) == Categorical(4, shape=2)
    assert Categorical(3).shape == ()


def test_variables_are_values():
    assert Real(2, scale=[1.0, 2.0]) == Real((2,), scale=torch.tensor([1.0, 2.0]))
    assert hash(Real(2)) == hash(Real((2,)))
    assert Real(2) != Real(2, loc=1.0)
    assert Real(np.int64(3)) == Real((np.int64(3),)) == Real(3)  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        Real(2).scale = 3.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Real(0), "at least one entry"),
        (lambda: Real(2, scale=-1.0), "scale must be positive"),
        (lambda: Real(2, scale=0.0), "scale must be positive"),
        (lambda: Real(2, scale=[1.0, 0.0]), "scale must be positive"),
        (lambda: Real(2, scale=math.nan), "scale must be finite"),
        (lambda: Real(2, loc=[1.0, 2.0, 3.0]), r"loc of shape \(3,\) does not broadcast to the shape \(2,\)"),
        (lambda: Real(2, constraint="negative"), "constraint must be None, 'positive', 'simplex' or an interval"),
        (lambda: Real(2, constraint=(1.0, 1.0)), "finite numbers lo < hi"),
        (lambda: Real(2, constraint=(0.0, math.inf)), "use 'positive'"),
        (lambda: Real(2, constraint=(0, 1, 2)), r"interval \(lo, hi\)"),  # type: ignore[arg-type]
        (lambda: Real((), constraint="simplex"), "at least two entries"),
        (lambda: Real(4, centered=True), r"shape \(particles, dimension\)"),
        (lambda: Real((1, 2), centered=True), "at least two particles"),
        (lambda: Real((4, 2), centered=True, loc=1.0), "centered=True needs loc=0"),
        (lambda: Real((4, 2), centered=True, scale=[1.0, 2.0]), "one number for scale"),
        (lambda: Real((4, 2), centered=True, constraint="positive"), "no constraint"),
        (lambda: Categorical(0), "positive whole number"),
        (lambda: Categorical(2.5), "positive whole number"),
        (lambda: Categorical([2, 3], shape=3), r"n has shape \(2,\), but the variable has shape \(3,\)"),
    ],
)
def test_bad_declarations_name_the_fix(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Real(2.0), TypeError, "whole numbers"),  # type: ignore[arg-type]
        (lambda: Real((2.7,)), TypeError, "whole numbers"),  # type: ignore[arg-type]
        (lambda: Real(2, loc="a"), (TypeError, ValueError), r"\bloc must"),
        (lambda: Real(2, scale="a"), (TypeError, ValueError), r"\bscale must"),
        (lambda: Categorical("a"), (TypeError, ValueError), r"\bn must"),
    ],
)
def test_arguments_of_another_type_are_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("variable", "value", "error", "message"),
    [
        (Real(2), torch.zeros(3), ValueError, r"'a' needs shape \[..., 2\], got \(3,\)"),
        (Real(2), torch.zeros(2, dtype=torch.int64), TypeError, r"'a' is Real .* got torch.int64; convert with .float"),
        (Real(2), torch.tensor([0.0, math.nan]), ValueError, "'a' holds NaN or infinite values"),
        (Real(2), torch.tensor([0.0, math.inf]), ValueError, "'a' holds NaN or infinite values"),
        (Real(2, constraint="positive"), torch.tensor([1.0, -1.0]), ValueError, "'a' must be positive"),
        (Real(2, constraint="positive"), torch.tensor([1.0, 0.0]), ValueError, "'a' must be positive"),
        (Real(2, constraint=(0.0, 1.0)), torch.tensor([0.5, 1.5]), ValueError, r"interval \[0.0, 1.0\]"),
        (Real(2, constraint=(0.0, 1.0)), torch.tensor([-0.5, 0.5]), ValueError, r"interval \[0.0, 1.0\]"),
        (Real(2, constraint="simplex"), torch.tensor([0.5, 0.6]), ValueError, "sum to one"),
        (Real(2, constraint="simplex"), torch.tensor([1.5, -0.5]), ValueError, "non-negative"),
        (Real((2, 1), centered=True), torch.tensor([[0.5], [0.6]]), ValueError, "subtract the mean over the particles"),
        (Categorical(2, 2), torch.zeros(2), TypeError, r"'a' is Categorical .* got torch.float32; convert with .long"),
        (Categorical(2, 2), torch.zeros(2, dtype=torch.int32), TypeError, "got torch.int32; convert with .long"),
        (Categorical(2, 2), torch.tensor([0, 3]), ValueError, "symbol 3; symbols run from 0 to n-1 with n=2"),
        (Categorical(2, 2), torch.tensor([0, -1]), ValueError, "symbol -1"),
        (Categorical(2, 2), torch.tensor([0, 2]), ValueError, "that is the mask symbol"),
        (Categorical([2, 3]), torch.tensor([2, 2]), ValueError, "symbol 2"),
    ],
)
def test_bad_values_name_the_variable_and_the_fix(variable, value, error, message):
    with pytest.raises(error, match=message):
        variable.check(value, "a")


@pytest.mark.parametrize("constraint", [(0.0, 1.0), "simplex"])
def test_closed_supports_include_their_ends(constraint):
    Real(2, constraint=constraint).check(torch.tensor([0.0, 1.0]), "a")


def test_the_mask_is_legal_only_where_asked():
    variable = Categorical([2, 3])
    variable.check(torch.tensor([3, 3]), "h", masked=True)
    with pytest.raises(ValueError, match="symbol 2"):
        variable.check(torch.tensor([2, 3]), "h", masked=True)  # no symbol of site 0, nor the mask
