"""Cluster the blood cells that ship with scanpy, and compare with their published labels.

Run by `make demo`. Nothing is downloaded; results go to demo_output/.
"""

from __future__ import annotations

import time
import warnings
from importlib.util import find_spec
from pathlib import Path

import scanpy as sc

import scvcc

OUTPUT = Path("demo_output")
TRUTH = "bulk_labels"


def load() -> sc.AnnData:
    """700 cells with their PCs, neighbor graph and published labels."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the file predates the current layout of AnnData
        return sc.datasets.pbmc68k_reduced()


def add_leiden(adata: sc.AnnData) -> bool:
    """Leiden at its default resolution on the same graph, if igraph is installed."""
    if find_spec("igraph") is None:
        return False
    sc.tl.leiden(adata, flavor="igraph", n_iterations=2, directed=False)
    return True


def report(adata: sc.AnnData, methods: dict[str, str]) -> None:
    """Print how well each labeling agrees with the published one."""
    print(f"{'':28}{'clusters':>8}{'NMI':>8}{'ARI':>8}")
    for name, key in methods.items():
        truth, labels = adata.obs[TRUTH], adata.obs[key]
        scores = f"{scvcc.metrics.nmi(truth, labels):8.3f}{scvcc.metrics.ari(truth, labels):8.3f}"
        print(f"{name:28}{labels.nunique():8d}{scores}")


def main() -> None:
    """Cluster, compare, save."""
    adata = load()
    n_types = adata.obs[TRUTH].nunique()
    print(f"{adata.n_obs} cells, {n_types} published types. Clustering ...")
    started = time.perf_counter()
    scvcc.tl.vcc(adata, n_clusters=n_types)
    print(f"done in {time.perf_counter() - started:.1f} s\n")

    methods = {f"VCC, n_clusters={n_types}": "vcc"}
    if add_leiden(adata):
        methods["Leiden, default resolution"] = "leiden"
    methods["Louvain, as published"] = "louvain"
    report(adata, methods)

    OUTPUT.mkdir(exist_ok=True)
    table, picture = OUTPUT / "pbmc68k_vcc.h5ad", OUTPUT / "pbmc68k_vcc.png"
    adata.write_h5ad(table)
    titles = ["VCC", "published types"]
    figure = scvcc.pl.vcc(adata, ["vcc", TRUTH], legend_loc="right margin", title=titles, return_fig=True)
    figure.savefig(picture, dpi=150, bbox_inches="tight")
    print(f"\nlabeled cells: {table.resolve()}\nmap:           {picture.resolve()}")


if __name__ == "__main__":
    main()
