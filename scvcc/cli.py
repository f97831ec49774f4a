"""`scvcc`: the command line, for pipelines; all of it is done by `scvcc.tl` and `scvcc.pl`."""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import scvcc

if TYPE_CHECKING:
    from anndata import AnnData

# names as in `tl`; what is left out has the default there
FIT: dict[str, dict[str, Any]] = {
    "n-clusters": {"type": int, "help": "number of clusters (default: estimated)"},
    "batch-key": {"nargs": "+", "help": "obs column that names the batch of each cell; several are combined"},
    "use-rep": {"help": "'X' or a key of obsm, such as X_pca (default: that of the stored graph, or a PCA)"},
    "layer": {"help": "layer to use instead of X"},
    "n-pcs": {"type": int, "help": "leading columns of the representation to use"},
    "neighbors-key": {"help": "stored graph to use"},
    "n-neighbors": {"type": int, "help": "size of a neighborhood if a graph is built (default: 16)"},
    "metric": {"help": "distance if a graph is built (default: euclidean)"},
    "min-cluster-size": {"type": int, "help": "smallest cluster if the number is estimated (default: 10)"},
    "max-train-cells": {"type": int, "help": "train on a sketch if there are more cells (default: 100000)"},
    "n-jobs": {"type": int, "help": "threads (default: one for small data, else all)"},
    "random-state": {"type": int, "help": "seed (default: 0)"},
    "device": {"help": "auto, cpu, cuda or mps (default: auto)"},
    "key-added": {"help": "name of the result; vcc"},
    "checkpoint": {
        "type": Path,
        "help": "file from which the same command resumes if it was stopped; removed when done",
    },
}
MAP: dict[str, dict[str, Any]] = {
    "n-clusters": {"type": int, "help": "cut the model's tree into this many clusters (default: the fitted ones)"},
    "min-confidence": {"type": float, "help": "cells below this confidence, from 0 to 1, become 'unassigned'"},
    "max-novelty": {
        "type": float,
        "help": "cells above this novelty, from 0 to 1, become 'unassigned' (default: 0.99)",
    },
    "key-added": {"help": "name of the result; vcc"},
}
EPILOG = """\
Files end in .h5ad or .zarr. --out is the input with the result added: obs/vcc, obs/vcc_confidence, obsm/X_vcc, uns/vcc
and more. If an output file exists, nothing is computed unless --force is given; each file appears complete or not at all.
Messages go to stderr. Exit codes: 0 done, 1 the data or the files cannot be used (the reason is on stderr), 2 the command
line was not understood, 130 interrupted.

  scvcc fit  cells.h5ad --n-clusters 12 --batch-key sample --out cells_vcc.h5ad --model model.safetensors --plot map.png
  scvcc map  new.h5ad --model model.safetensors --out new_vcc.h5ad --json > new.json
  scvcc plot new_vcc.h5ad --color vcc CD79A --out new.pdf
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    options = _parser().parse_args(arguments)
    try:
        start = time.monotonic()
        _check_files(options)
        summary = options.run(options)
    except KeyboardInterrupt:
        return 130
    except (ValueError, TypeError, OSError) as error:
        sys.stderr.write(f"scvcc {options.command}: {error}\n")
        return 1
    if options.json:
        files = {
            name: str(path) for name in ("input", "out", "model", "plot") if (path := getattr(options, name, None))
        }
        head = {"command": options.command, "version": scvcc.__version__, **files}
        sys.stdout.write(json.dumps({**head, **summary, "seconds": round(time.monotonic() - start, 3)}) + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    about: dict[str, Any] = {"epilog": EPILOG, "formatter_class": argparse.RawDescriptionHelpFormatter}
    parser = argparse.ArgumentParser("scvcc", description="Very Compact Clusters: labels and a map of cells.", **about)
    parser.add_argument("--version", action="version", version=scvcc.__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="{fit,map,plot}")

    fit = commands.add_parser("fit", help="cluster cells (scvcc.tl.vcc)", **about)
    fit.add_argument("--model", type=Path, help="file for the model, with which `scvcc map` labels other cells")
    new = commands.add_parser("map", help="label new cells with a model (scvcc.tl.map_query)", **about)
    new.add_argument("--model", type=Path, required=True, help="file that `scvcc fit --model` wrote")
    plot = commands.add_parser("plot", help="draw the map (scvcc.pl.vcc)", **about)
    plot.add_argument("--color", nargs="+", help="obs columns or names of variables (default: the labels)")
    plot.add_argument("--key", default="vcc", help="name of the result (default: vcc)")

    for command, run, table in ((fit, _fit, FIT), (new, _map, MAP), (plot, _plot, {})):
        command.set_defaults(run=run)
        command.add_argument("input", type=Path, help="cells, .h5ad or .zarr")
        what = "picture: .png, .pdf or .svg" if command is plot else "the cells with the result, .h5ad or .zarr"
        command.add_argument("--out", type=Path, required=True, help=what)
        if command is not plot:
            command.add_argument("--plot", type=Path, help="picture of the map: .png, .pdf or .svg")
        for name, settings in table.items():
            command.add_argument(f"--{name}", **settings)
        command.add_argument("--force", action="store_true", help="replace existing files")
        command.add_argument("--json", action="store_true", help="print a summary to stdout")
        command.add_argument("--quiet", action="store_true", help="show only warnings and errors")
    return parser


def _check_files(options: argparse.Namespace) -> None:
    """Refuse what cannot be read or written, before anything is computed."""
    model, plot = getattr(options, "model", None), getattr(options, "plot", None)
    read = [options.input, *([model] if options.command == "map" else [])]
    written = [path for path in (options.out, plot, model) if path is not None and path is not read[-1]]
    for path in read:
        if not path.exists():
            raise ValueError(f"{path} does not exist.")
    for path in (options.input, *([] if options.command == "plot" else [options.out])):
        if path.suffix not in (".h5ad", ".zarr"):
            raise ValueError(f"{path} must end in .h5ad or .zarr.")
    named = [*read, *written, *filter(None, [getattr(options, "checkpoint", None)])]
    if len({path.resolve() for path in named}) < len(named):
        raise ValueError("Each file that is read or written needs its own name.")
    for path in written:
        if not path.parent.is_dir():
            raise ValueError(f"{path.parent} is not a directory.")
        if path.exists() and not options.force:
            raise ValueError(f"{path} exists: choose another name, or replace it with --force.")


def _fit(options: argparse.Namespace) -> dict[str, Any]:
    adata = _read(options)
    scvcc.tl.vcc(adata, **_chosen(options, FIT), progress=not options.quiet, save_to=options.model)
    return _written(adata, options)


def _map(options: argparse.Namespace) -> dict[str, Any]:
    with _opened(options) as adata:
        scvcc.tl.map_query(adata, options.model, **_chosen(options, MAP))
        return _written(adata, options)


def _plot(options: argparse.Namespace) -> dict[str, Any]:
    adata = _read(options)
    _draw(adata, options.out, key=options.key, color=options.color)
    return {"n_cells": adata.n_obs}


def _chosen(options: argparse.Namespace, table: dict[str, Any]) -> dict[str, Any]:
    """What was given, by the names that `tl` knows."""
    given = {name: getattr(options, name) for name in (option.replace("-", "_") for option in table)}
    return {name: value for name, value in given.items() if value is not None}


def _read(options: argparse.Namespace) -> AnnData:
    import anndata

    _speak(options)
    return (anndata.read_h5ad if options.input.suffix == ".h5ad" else anndata.read_zarr)(options.input)


@contextmanager
def _opened(options: argparse.Namespace) -> Iterator[AnnData]:
    """The cells, whose matrices stay on disk if dask is there: they are read block by block, and written so."""
    try:
        import dask.array  # noqa: F401
        import h5py
        import zarr
        from anndata.experimental import read_dispatched, read_elem_lazy
    except ImportError:
        yield _read(options)
        return

    def reader(read: Callable[[Any], Any], name: str, element: Any, iospec: Any) -> Any:
        is_large = name.startswith(("/X", "/layers/", "/obsm/", "/obsp/", "/raw/X"))
        lazy = is_large and iospec.encoding_type in ("array", "csr_matrix")
        return (read_elem_lazy if lazy else read)(element)

    _speak(options)
    if options.input.suffix == ".zarr":
        yield read_dispatched(zarr.open(str(options.input), mode="r"), reader)
    else:
        with h5py.File(options.input) as file:
            yield read_dispatched(file, reader)


def _speak(options: argparse.Namespace) -> None:
    import scanpy  # here, as `scvcc --help` should be quick

    scanpy.settings.verbosity = 0 if options.quiet else 2


def _written(adata: AnnData, options: argparse.Namespace) -> dict[str, Any]:
    """Draw and write what was asked for; returns the summary."""
    key = options.key_added or "vcc"
    if options.plot is not None:
        _draw(adata, options.plot, key=key)
    with _complete(options.out) as part:
        (adata.write_h5ad if options.out.suffix == ".h5ad" else adata.write_zarr)(part)
    sizes = {str(name): int(size) for name, size in adata.obs[key].value_counts(sort=False).items()}
    confidence = round(float(adata.obs[f"{key}_confidence"].median()), 4)
    return {"n_cells": adata.n_obs, "n_clusters": len(sizes), "sizes": sizes, "median_confidence": confidence}


def _draw(adata: AnnData, path: Path, **arguments: Any) -> None:
    import matplotlib as mpl

    mpl.use("agg")
    with _complete(path) as part:
        scvcc.pl.vcc(adata, return_fig=True, **arguments).savefig(part, dpi=200)


@contextmanager
def _complete(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`; the file becomes `path` when it is complete, and is removed otherwise."""
    part = path.with_name(f".{secrets.token_hex(4)}.{path.name}")
    try:
        yield part
        if path.suffix == ".zarr" and path.is_dir():  # a directory cannot be replaced in one go
            shutil.rmtree(path)
        os.replace(part, path)
    finally:
        if part.is_dir():
            shutil.rmtree(part)
        part.unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
