"""`tl.stability`: which clusters come back."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
from anndata import AnnData
from numpy.random import Generator, RandomState

from scvcc._anndata import results
from scvcc._anndata.inputs import find_again
from scvcc._anndata.matrices import check_adata
from scvcc._model.checks import as_seed, validated
from scvcc._model.parameters import checked_settings
from scvcc._training.explore import recurrence
from scvcc._training.graph import given_graph


@validated(n_runs=1, share=(0, 1))
def stability(
    adata: AnnData,
    n_runs: int = 10,
    *,
    key: str = "vcc",
    share: float = 0.8,
    random_state: int | Generator | RandomState | None = 0,
    progress: bool = True,
    copy: bool = False,
) -> AnnData | None:
    """Measure how well each cluster is recovered when random subsets of the cells are clustered again.

    Each run lays out a subset of the cells, with the graph between them, and divides it into the same number of
    clusters; no encoder is trained. Clusters are compared by the Jaccard index: cells in both over cells in either. As a
    rule of thumb, a cluster above 0.75 is stable, and one below 0.5 dissolves :cite:p:`stability`.
    :func:`scvcc.pl.stability` draws the result.

    Parameters
    ----------
    adata
        Annotated data with a result of :func:`~scvcc.tl.vcc`. Nothing is written before everything is computed.
    n_runs
        Number of runs. Each takes one to two seconds of a core for 10,000 cells.
    key
        Name of the result: `key_added` of :func:`~scvcc.tl.vcc`. Renamed or merged clusters are used as they are.
    share
        Share of the cells in each run.
    random_state
        Seed or generator.
    progress
        Show a progress bar.
    copy
        Return a copy with the result instead of writing to `adata`.

    Returns
    -------
    None, or the copy if `copy=True`. Writes these fields:

    `adata.obs[key + "_stability"]`
        Jaccard index of the cell's cluster with the cluster that the cell falls into, averaged over its runs.
    `adata.uns[key + "_stability"]`
        `clusters`: a table with the number of cells (`n_cells`; of the sketch, if there is one), the mean over runs of
        the Jaccard index with the best match (`stability`), and the lowest of them (`worst`). `runs`: that index by run
        and cluster. `params`.

    Examples
    --------
    >>> import scanpy as sc
    >>> import scvcc
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> scvcc.tl.vcc(adata, n_clusters=6, hidden=(64,), progress=False)
    >>> scvcc.tl.stability(adata, n_runs=3, progress=False)
    >>> adata.uns["vcc_stability"]["clusters"].shape
    (6, 3)
    """
    check_adata(adata, copy=copy)
    run = results.stored_run(adata, key)
    name = f"{key}_stability"
    results.refuse_strangers(adata, key, [f"obs/{name}", f"uns/{name}"])
    seed = as_seed(random_state)
    model, X, graph, members = find_again(adata, run)
    labels, categories = run.labels(members)
    kept = round(share * len(members))
    if kept < len(categories) or kept == len(members):
        raise ValueError(
            f"share={share} leaves {kept} of {len(members)} cells for {len(categories)} clusters: choose another share, "
            "or merge clusters first."
        )
    settings = replace(checked_settings(model, X.shape[0]), objective="compact")
    latent = given_graph(graph.matrix, len(members), graph.mode)
    runs, recurring = recurrence(latent, labels, settings, seed, n_runs=n_runs, share=float(share), progress=progress)
    known = np.ma.masked_invalid(runs)  # a cluster of few cells may be in no run
    mean, worst = known.mean(axis=0).filled(np.nan), known.min(axis=0).filled(np.nan)
    clusters = pd.DataFrame(
        {"n_cells": np.bincount(labels), "stability": mean, "worst": worst}, index=pd.Index(categories, name="cluster")
    )
    params = {"n_runs": n_runs, "share": float(share), "random_state": seed, "key": key}
    target = adata.copy() if copy else adata
    column = results.spread(recurring, np.isin(np.arange(adata.n_obs), members))
    results.add_fields(
        target, key, {"obs": {name: column}, "uns": {name: {"clusters": clusters, "runs": runs, "params": params}}}
    )
    return target if copy else None
