"""Baselines that are EGM on other paths: iEFM and iDEM.

iEFM   EGM with a flow on the conditional optimal transport path
iDEM   EGM on the variance exploding path, averaging the target's score
"""

from __future__ import annotations

from egm.methods.egm import EGM
from egm.methods.egm_options import EGMOptions
from egm.methods.registry import add_method
from egm.methods.trained import Trained

add_method(
    "iefm",
    Trained(
        "baseline iEFM: EGM with a flow on the conditional optimal transport path",
        method=EGM,
        options=EGMOptions,
        process="Flow",
        needs_reals=True,
    ),
)
add_method(
    "idem",
    Trained(
        "baseline iDEM: EGM on the variance exploding path, averaging the target's score",
        method=EGM,
        options=EGMOptions,
        defaults={"estimator": "scores", "proposal": "flat"},
        path="VE",
    ),
)
