"""Export of draws to files; the suffix selects the format.

    .nc     NetCDF 4, for ArviZ: groups "posterior" and "sample_stats", dimensions chain (one), draw (n), and
            NAME_dim_i for the axes of a variable
    .npz    NumPy: one array for each variable, `.log_weights` and `.energies`
    .csv    a line for each draw: NAME, NAME[i] or NAME[i][j] for each entry, log_weight and energy

Log-weights and energies are written if the draws have them. In "sample_stats" they are `log_weight`, `energy` and, as
ArviZ calls it, `lp` = −energy. Writes are atomic and need little memory in addition to the draws.
"""

from __future__ import annotations

import csv
import io
import zipfile
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from egm.util.extras import needed
from egm.util.files import replacing, replacing_path

if TYPE_CHECKING:
    from xarray import DataTree  # pyright: ignore[reportMissingImports]

    from egm.draws import Draws

ROWS = 4096  # lines of text formatted at a time
CHAIN, DRAW = "chain", "draw"


def write(draws: Draws, file: str | Path) -> None:
    """Writes draws to a file, in the format of its suffix."""
    file = Path(file)
    writer_of(file)(draws, file)


def writer_of(file: Path) -> Callable[[Draws, Path], None]:
    """Returns the writer for the suffix of a file; raises if the suffix is unknown or a package is missing."""
    writers = {".nc": _write_netcdf, ".npz": _write_npz, ".csv": _write_csv}
    if file.suffix not in writers:
        given = f"'{file.suffix}'" if file.suffix else "no suffix"
        raise ValueError(f"draws are written as .nc (ArviZ), .npz (NumPy) or .csv; '{file}' has {given}")
    if file.suffix == ".nc":
        for name in ("xarray", "h5netcdf"):
            needed(name, what="writing NetCDF", extra="bayes")
    return writers[file.suffix]


def datatree(draws: Draws) -> DataTree:
    """Returns the groups of a NetCDF file."""
    xarray = needed("xarray", what="to_datatree", extra="bayes")
    taken = {CHAIN, DRAW}
    for name, x in draws.state.items():
        taken |= set(_axes(name, x.ndim))
    for name in draws.state:
        if name in taken or "/" in name:
            raise ValueError(
                f"xarray cannot hold a variable called '{name}': a dimension has that name, or it contains '/';"
                " rename it in the Space, or write .npz"
            )
    values = {name: x.detach().cpu().numpy()[None] for name, x in draws.state.items()}
    posterior = {name: ((CHAIN, DRAW, *_axes(name, x.ndim - 1)), x) for name, x in values.items()}
    groups = {"posterior": posterior}
    stats = {name: ((CHAIN, DRAW), x[None]) for name, x in _stats(draws).items()}
    if "energy" in stats:
        stats["lp"] = ((CHAIN, DRAW), -stats["energy"][1])
    groups |= {"sample_stats": stats} if stats else {}
    coordinates = {CHAIN: [0], DRAW: range(len(draws))}
    made_by = {"inference_library": "egm"}  # an attribute that ArviZ's schema requires
    return xarray.DataTree.from_dict(
        {name: xarray.Dataset(group, coords=coordinates, attrs=made_by) for name, group in groups.items()}
    )


def _axes(name: str, ndim: int) -> list[str]:
    """Returns the names of a variable's axes; its array [n, ...] has `ndim` axes."""
    return [f"{name}_dim_{i}" for i in range(ndim - 1)]


def _stats(draws: Draws) -> dict[str, NDArray[np.float64]]:
    """Returns the log-weights and energies that the draws have."""
    found = {"log_weight": draws.log_weights, "energy": draws.energies}
    return {name: x.detach().cpu().numpy() for name, x in found.items() if x is not None}


def _write_netcdf(draws: Draws, file: Path) -> None:
    tree = datatree(draws)
    with replacing_path(file) as temporary:
        tree.to_netcdf(temporary, engine="h5netcdf")


def _write_npz(draws: Draws, file: Path) -> None:
    """Writes like `numpy.savez`, but for variables of any name ("file" is an argument of `savez`)."""
    arrays: dict[str, NDArray[Any]] = {name: x.detach().cpu().numpy() for name, x in draws.state.items()}
    names = {"log_weight": ".log_weights", "energy": ".energies"}  # names that no variable can have
    arrays |= {names[name]: x for name, x in _stats(draws).items()}
    with replacing(file) as stream, zipfile.ZipFile(stream, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                np.lib.format.write_array(member, np.asanyarray(array), allow_pickle=False)


def _write_csv(draws: Draws, file: Path) -> None:
    arrays: dict[str, NDArray[Any]] = {name: x.detach().cpu().numpy() for name, x in draws.state.items()}
    columns = [column for name, x in arrays.items() for column in _columns(name, x.shape[1:])]
    stats = _stats(draws)
    if len({*columns, *stats}) < len(columns) + len(stats):
        raise ValueError(f"two columns of {sorted(arrays)} and {sorted(stats)} would have the same name; write .npz")
    with replacing(file) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8", newline="")
        writer = csv.writer(text, lineterminator="\n")
        writer.writerow([*columns, *stats])
        for start in range(0, len(draws), ROWS):
            parts = [x[start : start + ROWS] for x in (*arrays.values(), *stats.values())]
            writer.writerows(_rows(parts))
        text.detach()  # flushes the text and leaves the stream open


def _columns(name: str, shape: tuple[int, ...]) -> list[str]:
    return [name + "".join(f"[{i}]" for i in index) for index in product(*map(range, shape))]


def _rows(parts: list[NDArray[Any]]) -> Iterator[list[str]]:
    """Yields the lines of some draws; numbers have just enough digits to be distinct in their dtype."""
    texts = [x.reshape(len(x), -1).astype(str).tolist() for x in parts]
    for entries in zip(*texts, strict=True):
        yield [entry for part in entries for entry in part]
