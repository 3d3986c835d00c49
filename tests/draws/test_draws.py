"""Draws: closed forms of every weighted quantity, resampling, and the reports on good, bad and missing weights."""

import math

import numpy as np
import pytest
import torch

from egm.draws import Draws
from egm.spaces import Categorical, Real, Space
from support.stats import assert_counts, assert_mean

SPACE = Space(v=Real(2), h=Categorical(3, shape=()))
V = [[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [4.0, 40.0]]
WEIGHTS = [0.1, 0.2, 0.3, 0.4]


def draws(log_weights=None, **options):
    weights = None if log_weights is None else torch.as_tensor(log_weights)
    return Draws(SPACE, {"v": torch.tensor(V), "h": torch.tensor([0, 1, 2, 1])}, log_weights=weights, **options)


def weighted(shift=0.0, scale=1.0):
    return draws(scale * np.log(WEIGHTS) + shift)


# ---------------------------------------------------------------------- a sequence of states


def test_draws_are_a_mapping_of_tensors():
    found = draws(energy_calls=17)
    assert len(found) == 4
    assert list(found) == ["v", "h"]
    torch.testing.assert_close(found["v"], torch.tensor(V))
    assert found["h"].tolist() == [0, 1, 2, 1]
    assert found.log_weights is None
    assert found.energy_calls == 17
    assert repr(found) == f"Draws(n=4, {SPACE!r})"
    assert repr(weighted()) == f"Draws(n=4, {SPACE!r}, ess=0.833)"


def test_shapes_are_checked():
    state = {"v": torch.zeros(4, 2), "h": torch.zeros(4, dtype=torch.int64)}
    with pytest.raises(ValueError, match=r"log_weights need the shape \(4,\), got \(3,\)"):
        Draws(SPACE, state, log_weights=torch.zeros(3))
    with pytest.raises(ValueError, match=r"one leading axis of at least one draw, got the batch shape \(\)"):
        Draws(SPACE, {"v": torch.zeros(2), "h": torch.zeros((), dtype=torch.int64)})
    with pytest.raises(ValueError, match=r"got the batch shape \(0,\)"):
        Draws(SPACE, {name: x[:0] for name, x in state.items()})
    with pytest.raises(ValueError, match=r"a state needs the variables \['v', 'h'\]"):
        Draws(SPACE, {"v": torch.zeros(4, 2)})


def test_groups_divide_the_draws():
    assert draws(groups=2).groups == 2
    for groups in (0, -1, 3, 8):
        with pytest.raises(ValueError, match=f"groups must be at least 1 and divide the 4 draws, got {groups}"):
            draws(groups=groups)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_illegal_weights_are_refused(bad):
    with pytest.raises(ValueError, match=r"1 of 4 are NaN or \+inf, first of all draw 2: look for an energy"):
        draws([0.0, -math.inf, bad, 1.0])


# ---------------------------------------------------------------------- weights


@pytest.mark.parametrize("shift", [0.0, -700.0, 900.0, 1e5])
def test_weighted_quantities_in_closed_form(shift):
    found = weighted(shift)
    assert found.ess == pytest.approx(1 / (4 * (0.01 + 0.04 + 0.09 + 0.16)))
    assert found.log_z == pytest.approx(shift + math.log(0.25))
    assert found.elbo == pytest.approx(shift + np.mean(np.log(WEIGHTS)))
    spread = np.std(np.array(WEIGHTS) / 0.25, ddof=1)  # of w/mean(w)
    assert found.log_z_stderr == pytest.approx(spread / 2)
    assert found.elbo < found.log_z


def test_weights_are_kept_in_double_precision():
    found = draws(torch.tensor([1000.0001, 1000.0, 1000.0, 1000.0], dtype=torch.float32))
    assert found.log_weights is not None
    assert found.log_weights.dtype == torch.float64


def test_equal_and_degenerate_weights():
    assert draws([3.0] * 4).ess == pytest.approx(1.0)
    assert draws([3.0] * 4).log_z_stderr == pytest.approx(0.0)
    assert draws([3.0] * 4).log_z == draws([3.0] * 4).elbo == pytest.approx(3.0)
    one = draws([0.0, -math.inf, -math.inf, -math.inf])
    assert one.ess == pytest.approx(0.25)
    assert one.log_z == pytest.approx(-math.log(4))
    assert one.elbo == -math.inf
    torch.testing.assert_close(one.expect(lambda v, h: v)[0], torch.tensor([1.0, 10.0], dtype=torch.float64))
    single = Draws(SPACE, {"v": torch.zeros(1, 2), "h": torch.zeros(1, dtype=torch.int64)}, log_weights=torch.ones(1))
    assert (single.ess, single.log_z, single.log_z_stderr) == (1.0, 1.0, math.inf)


def gaussian_draws(n, seed, *, width=1.5, repeats=1):
    """N(0, width²) proposals weighted for 7·N(0.3, 1); log Z = log 7."""
    generator = torch.Generator().manual_seed(seed)
    x = width * torch.randn(repeats, n, generator=generator, dtype=torch.float64)
    log_w = math.log(7) - 0.5 * (x - 0.3).square() + 0.5 * (x / width).square() + math.log(width)
    space = Space(x=Real(()))
    return [Draws(space, {"x": a}, log_weights=b) for a, b in zip(x, log_w, strict=True)]


def test_errors_are_those_of_repetitions():
    """log Z and expectations over 400 repetitions: right on average, and standard errors that are the spread."""
    sets = gaussian_draws(500, 0, repeats=400)
    log_z = np.array([d.log_z for d in sets])
    means, errors = zip(*(d.expect(lambda x: torch.stack([x, x.square()], -1)) for d in sets), strict=True)
    means, errors = np.stack(means), np.stack(errors)
    assert_mean(np.exp(log_z) / 7, 1.0, "Z")
    assert np.std(log_z) == pytest.approx(np.mean([d.log_z_stderr for d in sets]), rel=0.15)
    assert_mean(means, [0.3, 1.09], "self-normalised means")
    np.testing.assert_allclose(means.std(0), errors.mean(0), rtol=0.15)
    assert np.mean([d.elbo for d in sets]) < math.log(7) - 0.05
    # E[w]²/E[w²] of these weights, in closed form
    v = 1.5**2
    second = v / math.sqrt(2 * v - 1) * math.exp(0.09 / (2 * v - 1))
    assert np.mean([d.ess for d in sets]) == pytest.approx(1 / second, rel=0.02)


def z_scores(sets, groups):
    """(log Z, E[x], E[x²]) less the truth of `gaussian_draws`, in units of the standard errors that draws report."""
    rows = []
    for plain in sets:
        d = Draws(plain.space, plain.state, log_weights=plain.log_weights, groups=groups)
        mean, error = d.expect(lambda x: torch.stack([x, x.square()], -1))
        z = ((mean - torch.tensor([0.3, 1.09])) / error).tolist()
        rows.append([(d.log_z - math.log(7)) / d.log_z_stderr, *z])
    return np.array(rows)


def cloned(d, copies):
    """Every draw `copies` times over, next to each other."""
    assert d.log_weights is not None
    return Draws(d.space, {"x": d["x"].repeat_interleave(copies)}, log_weights=d.log_weights.repeat_interleave(copies))


def test_errors_of_groups_know_of_common_ancestors():
    """80 groups of five draws, ten copies of each: z-scores are standard with groups, ten times too wide without."""
    sets = [cloned(d, 10) for d in gaussian_draws(400, 1, repeats=500)]
    z = z_scores(sets, groups=80)
    assert (z**2).mean(0) == pytest.approx(np.ones(3), rel=0.25)  # four standard errors of χ²/500
    assert (np.abs(z) < 2).mean(0) == pytest.approx(np.full(3, 0.9545), abs=0.04)
    assert (z_scores(sets, groups=1) ** 2).mean(0) == pytest.approx(np.full(3, 10.0), rel=0.25)
    plain = z_scores(gaussian_draws(400, 2, repeats=500), groups=1)
    assert (plain**2).mean(0) == pytest.approx(np.ones(3), rel=0.25)
    assert (np.abs(plain) < 2).mean(0) == pytest.approx(np.full(3, 0.9545), abs=0.04)


def test_groups_in_closed_form():
    one, two = weighted(), draws(np.log(WEIGHTS), groups=2)
    assert (two.ess, two.log_z, two.elbo) == (one.ess, one.log_z, one.elbo)
    assert two.log_z_stderr == pytest.approx(math.sqrt(2 * (0.2**2 + 0.2**2)))  # blocks have .3 and .7 of the weight
    mean, stderr = two.expect(lambda v, h: v[:, 0])
    assert float(mean) == pytest.approx(3.0)
    left, right = 0.1 * (1 - 3) + 0.2 * (2 - 3), 0.4 * (4 - 3)
    assert float(stderr) == pytest.approx(math.sqrt(2 * (left**2 + right**2)))
    _, plain = draws(groups=2).expect(lambda v, h: v[:, 0])  # block means 1.5 and 3.5: sd √2 over √2
    assert float(plain) == pytest.approx(1.0)


IMPOSSIBLE = [-math.inf] * 4


@pytest.mark.parametrize("name", ["ess", "log_z", "log_z_stderr", "elbo", "pareto_k", "halves"])
def test_draws_of_no_density_say_so(name):
    with pytest.raises(ValueError, match=f"{name} is undefined: no draw has positive density, the energy is "):
        getattr(draws(IMPOSSIBLE), name)


def test_draws_of_no_density_can_be_shown():
    found = draws(IMPOSSIBLE)
    for use in (lambda: found.expect(lambda v, h: v), lambda: found.resample(3)):
        with pytest.raises(ValueError, match="no draw has positive density"):
            use()
    assert found.summary().splitlines()[-1] == "unreliable, because no draw has positive density"
    assert repr(found) == f"Draws(n=4, {SPACE!r}, ess=0.000)"


# ---------------------------------------------------------------------- expectations


def test_expectations_without_weights_are_plain_means():
    mean, stderr = draws().expect(lambda v, h: v)
    torch.testing.assert_close(mean, torch.tensor([2.5, 25.0], dtype=torch.float64))
    spread = np.std([1, 2, 3, 4]) / 2  # sd/√n
    torch.testing.assert_close(stderr, torch.tensor([spread, 10 * spread], dtype=torch.float64))


def test_weighted_expectations_in_closed_form():
    mean, stderr = weighted(50.0).expect(lambda v, h: v[:, 0])
    assert float(mean) == pytest.approx(0.1 + 0.4 + 0.9 + 1.6)
    assert float(stderr) == pytest.approx(
        math.sqrt(sum((w * (x - 3)) ** 2 for w, x in zip(WEIGHTS, [1, 2, 3, 4], strict=True)))
    )
    share, _ = weighted().expect(lambda v, h: h == 1)  # booleans are probabilities
    assert float(share) == pytest.approx(0.6)
    table, errors = weighted().expect(lambda v, h: v[:, :, None] * torch.ones(3))
    assert table.shape == errors.shape == (2, 3)
    torch.testing.assert_close(table[:, 0], torch.tensor([3.0, 30.0], dtype=torch.float64))


def test_functions_must_give_one_value_a_draw():
    for function in (lambda v, h: v.mean(), lambda v, h: v[:3], lambda v, h: v.T, lambda v, h: 3.0):
        with pytest.raises(ValueError, match=r"one value for each of 4 draws, got (the shape \(|a float)"):
            draws().expect(function)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"must take the variables \['v', 'h'\] by their names: .*'x'"):
        draws().expect(lambda x: x)


# ---------------------------------------------------------------------- resampling


def test_resampling_is_in_proportion_to_the_weights():
    found = weighted(-300.0).resample(5000, seed=3)
    which = (found["v"][:, 0] - 1).long()
    assert_counts(torch.bincount(which, minlength=4), WEIGHTS)
    torch.testing.assert_close(found["v"], torch.tensor(V)[which])  # whole states, not variables by themselves
    assert torch.equal(found["h"], torch.tensor([0, 1, 2, 1])[which])


def test_resampling_without_weights_is_uniform():
    which = (draws().resample(4000, seed=1)["v"][:, 0] - 1).long()
    assert_counts(torch.bincount(which, minlength=4), [0.25] * 4)


def test_resampling_repeats_with_its_seed():
    a, b, c = (weighted().resample(50, seed=seed)["v"] for seed in (5, 5, 6))
    assert torch.equal(a, b)
    assert not torch.equal(a, c)
    with pytest.raises(ValueError, match="n must be at least 1, got 0"):
        weighted().resample(0)


def test_draws_of_weight_zero_are_never_resampled():
    found = draws([0.0, -math.inf, 0.0, -math.inf]).resample(500)
    assert set(found["v"][:, 0].tolist()) == {1.0, 3.0}


# ---------------------------------------------------------------------- what is said


@pytest.mark.parametrize("name", ["ess", "log_z", "log_z_stderr", "elbo", "pareto_k", "halves"])
def test_without_weights_errors_explain(name):
    with pytest.raises(ValueError, match=f"{name} needs importance weights, and these draws have none: the simulation"):
        getattr(draws(), name)
    with pytest.raises(ValueError, match=f"{name} needs .* have none: jumps have no step densities"):
        getattr(draws(why_unweighted="jumps have no step densities"), name)


def numbers(line):
    return [float(word) for word in line.split()[1:]]


def test_summary_of_plain_draws():
    lines = draws().summary().splitlines()
    assert lines[0] == f"4 draws of {SPACE!r}"
    assert lines[1].split() == ["variable", "mean", "sd"]
    assert [line.split()[0] for line in lines[2:5]] == ["v[0]", "v[1]", "h"]
    assert numbers(lines[2]) == pytest.approx([2.5, np.std([1, 2, 3, 4])], abs=1e-4)
    assert numbers(lines[3]) == pytest.approx([25, 10 * np.std([1, 2, 3, 4])], abs=1e-4)
    assert numbers(lines[4]) == pytest.approx([1.0, math.sqrt(0.5)], abs=1e-4)
    assert lines[5].startswith("unreliable, because there are no weights: the simulation that made them does not")
    assert len(lines) == 6
    why = draws(why_unweighted="jumps have no step densities").summary().splitlines()[-1]
    assert why == "unreliable, because there are no weights: jumps have no step densities"


def test_summary_of_weighted_draws():
    lines = weighted(2.0).summary().splitlines()
    assert numbers(lines[2]) == pytest.approx([3.0, 1.0], abs=1e-4)
    log_z, stderr, elbo = 2 + math.log(0.25), weighted().log_z_stderr, 2 + float(np.mean(np.log(WEIGHTS)))
    first, second = 2 + math.log(0.15), 2 + math.log(0.35)
    assert lines[5:] == [
        "n 4, ESS 0.833, Pareto k̂ not estimated (too few large weights)",
        f"log Z {log_z:.4f} ± {stderr:.4f} (halves {first:.4f}, {second:.4f}), ELBO {elbo:.4f}",
        "a mode that the sampler never visits cannot be detected from weights",
        "unreliable, because ESS 0.833 is worth 3 independent draws (at least 0.05 and 100 are wanted)",
    ]
    assert weighted(2.0).halves == pytest.approx((first, second))


def test_summary_shows_the_eubo():
    lines = draws(np.log(WEIGHTS), eubo=lambda: (-1.25, 0.01)).summary().splitlines()
    assert lines[6].endswith(f"ELBO {np.mean(np.log(WEIGHTS)):.4f}, EUBO -1.2500 ± 0.0100")
    assert len(lines) == 8  # nothing about modes
    grouped = draws(np.log(WEIGHTS), eubo=lambda: (-1.25, 0.01), groups=2).summary().splitlines()
    assert grouped[7] == "a mode that the sampler never visits cannot be detected from weights"
    assert grouped[-1].endswith("; independent draws or groups: 2, at least 4 are wanted for an error bar")


def test_long_variables_are_cut_short():
    space = Space(x=Real((4, 5)), y=Real(8))
    lines = Draws(space, {"x": torch.ones(3, 4, 5), "y": torch.zeros(3, 8)}).summary().splitlines()
    assert [line.split()[0] for line in lines if line.startswith("x[")] == [f"x[{i}]" for i in range(8)]
    assert "… and 12 more entries of x" in lines
    assert not any("entries of y" in line for line in lines)
