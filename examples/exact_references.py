"""A tour of the checks that need no training (about ten seconds on a laptop).

1. A user-defined mixed energy is declared and checked.
2. A built-in target shows its exact answers: log Z, modes, independent draws.
3. A classical sampler is compared with exact draws, and with the floor, which is the value of exact draws.
"""

import torch

import egm
from egm.mcmc import HMC, Alternate, Gibbs, diagnose, run
from egm.metrics import e_w1, floor, mode_count, x_w2


def own_energy() -> None:
    """Declare and check a two-dimensional Gaussian whose mean depends on a three-valued label."""
    space = egm.Space(x=egm.Real(2, scale=3.0), label=egm.Categorical(3))
    centers = ((0.0, 0.0), (4.0, 0.0), (0.0, 4.0))

    def energy(x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        center = torch.tensor(centers, dtype=x.dtype, device=x.device)[label]
        return 0.5 * (x - center).square().sum(-1)

    target = egm.Target(space, energy)
    target.check()  # batched, deterministic, on the right device, neither NaN nor -inf
    print(f"1. {target!r} on {space} passes target.check() ({target.energy_calls} energy calls)")


def exact_answers(target: egm.targets.GBRBM) -> None:
    """Print exact results about the Gaussian-Bernoulli restricted Boltzmann machine."""
    print(f"2. {target!r}: log Z = {target.log_z:.5f}, {len(target.modes.masses)} modes of mass", end=" ")
    print(", ".join(f"{mass:.3f}" for mass in target.modes.masses.tolist()))
    draws = target.exact_sample(2000, seed=0)
    print(f"   2000 exact draws visit {mode_count(target, draws)} modes, mean energy", end=" ")
    print(f"{float(target.energy(**draws).mean()):.3f}")


def classical_sampler(target: egm.targets.GBRBM) -> None:
    """Run 64 chains of alternating Gibbs and Hamiltonian steps, which all start between the modes."""
    kernel = Alternate([Gibbs(target), HMC(target, leapfrog_steps=5)])
    start = {"v": torch.zeros(64, 2), "h": torch.zeros(64, 3, dtype=torch.int64)}
    chains = run(target, kernel, chains=64, warmup=40, steps=32, init=start)
    draws = {name: x.flatten(0, 1)[:2000] for name, x in chains.state.items()}
    reference = target.exact_sample(2000, seed=1)
    print(f"3. {kernel!r}, 64 chains from one state:")
    print(f"   {'':18}{'chains':>10}{'floor':>10}")
    for name, metric, pairs in (("E-W1", e_w1, 200), ("x-W2", x_w2, 10)):
        value, exact = metric(target, draws, reference), floor(metric, target, 2000, pairs=pairs)
        print(f"   {name:18}{value:10.3f}{exact.mean:10.3f}   ({exact.pairs} pairs of 2000 exact draws)")
    print(f"   {'modes found':18}{mode_count(target, draws):10d}{6:10d}")
    print(f"   {'R-hat of energy':18}{diagnose(target, chains)['energy']['r_hat']:10.3f}{1:10.3f}")
    print(f"   {chains.energy_calls} energy calls, {chains.score_calls} gradients, {chains.seconds:.1f} s")


def main() -> None:
    own_energy()
    target = egm.targets.GBRBM()
    exact_answers(target)
    classical_sampler(target)


if __name__ == "__main__":
    main()
