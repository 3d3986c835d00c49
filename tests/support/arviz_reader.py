"""Prints as JSON what ArviZ reads from a NetCDF file of weighted draws; for any Python with ArviZ, without egm."""

import json
import sys
import warnings

import numpy as np

warnings.simplefilter("ignore")  # 0.23 announces its successor; a single chain has no R-hat


def read(file: str) -> dict[str, object]:
    import arviz as az  # pyright: ignore[reportMissingImports]

    data = az.from_netcdf(file)
    posterior, stats = data["posterior"], data["sample_stats"]
    table = az.summary(data, round_to="none")
    weights = np.exp(stats["log_weight"] - stats["log_weight"].max())
    return {
        "version": az.__version__,
        "names": list(table.index),
        "mean": [float(value) for value in table["mean"]],
        "ess": [float(value) for value in table["ess_bulk"]],
        "weighted": ((posterior["x"] * weights).sum(("chain", "draw")) / weights.sum()).values.tolist(),
        "energy": float((stats["energy"] * weights).sum() / weights.sum()),
        "lp": float((stats["lp"] * weights).sum() / weights.sum()),
    }


if __name__ == "__main__":
    print(json.dumps(read(sys.argv[1])))
