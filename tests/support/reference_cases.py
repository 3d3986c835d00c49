"""A target whose reference is a short run of MCMC."""

from egm.mcmc import HMC, ReferencePlan
from egm.spaces import Real, Space
from egm.targets.base import Target


class ByMCMC(Target):
    """A Gaussian in the plane with a reference of 1000 draws."""

    reference_kind = "mcmc"

    def __init__(self) -> None:
        super().__init__(Space(x=Real(2)), lambda x: 0.5 * x.square().sum(-1), name="ByMCMC()")

    def _reference_plan(self) -> ReferencePlan:
        return ReferencePlan(HMC(self, leapfrog_steps=3), chains=20, warmup=50, steps=50, thin=5)

    def observables(self, **state):
        return {"radius": state["x"].norm(dim=-1), **super().observables(**state)}
