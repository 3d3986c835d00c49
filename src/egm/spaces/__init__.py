"""Spaces: products of named variables, the states that live on them, and their latent coordinates."""

from egm.spaces.space import Space, State, Variable
from egm.spaces.variables import Categorical, Real

__all__ = ["Categorical", "Real", "Space", "State", "Variable"]
