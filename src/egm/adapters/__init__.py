"""Targets from energies and models that were not written for this library.

| from | by | needs |
|---|---|---|
| a log-density in torch | `egm.Target.from_log_prob` | |
| an energy in NumPy, without gradients | `from_numpy` | |
| an energy in JAX, with its gradient | `from_jax` | `pip install 'egm[jax]'` |
| a Pyro model | `from_pyro` | `pip install 'egm[pyro]'` |
| a NumPyro model | `from_numpyro` | `pip install 'egm[numpyro]'` |

Other packages are imported when an adapter is called.
"""

from egm.adapters.jax_energy import from_jax
from egm.adapters.numpy_energy import from_numpy
from egm.adapters.numpyro_model import from_numpyro
from egm.adapters.pyro_model import from_pyro
from egm.adapters.sites import ModelTarget

__all__ = ["ModelTarget", "from_jax", "from_numpy", "from_numpyro", "from_pyro"]
