"""`tl.map_query`: labels for new cells."""

from __future__ import annotations

import os

from anndata import AnnData

from scvcc._anndata import results
from scvcc._anndata.matrices import check_adata
from scvcc._anndata.messages import info
from scvcc._anndata.query import cut_reference, label_query, place_query, read_reference, summarize, write_query
from scvcc._model.checks import validated
from scvcc._model.vcc import VCC


@validated(min_confidence=(0, 1), max_novelty=(0, 1))
def map_query(
    adata: AnnData,
    reference: str | os.PathLike[str] | VCC,
    *,
    key_added: str = "vcc",
    n_clusters: int | None = None,
    min_confidence: float | None = None,
    max_novelty: float | None = 0.99,
    copy: bool = False,
) -> AnnData | None:
    """Label new cells and place them on the map of a reference.

    Variables are matched by name, in any order; others are ignored. New cells go through the reference's projection (PCA
    loadings and means, or LSA components), then its encoder. No PCA of the new cells is computed. Prepare the new cells
    as the reference was prepared, for instance with the same normalization. Batch effects are not corrected, except those
    that a reference with `batch_key` has learned.

    Parameters
    ----------
    adata
        New cells. Nothing is written before everything is computed.
    reference
        File that `scvcc.tl.vcc(reference_adata, save_to=...)` wrote, or the model that `scvcc.VCC.load` read from it.
    key_added
        Name of the result.
    n_clusters
        Cut the reference's tree into this many clusters, as :func:`~scvcc.tl.cut` does. None: the fitted clusters.
    min_confidence
        Cells below this confidence, from 0 to 1, become "unassigned". This finds cells between known clusters.
    max_novelty
        Cells above this novelty, from 0 to 1, become "unassigned". This finds cells of unknown kinds, and loses some of
        known kinds: a lower limit finds more and loses more. None assigns all cells.
    copy
        Return a copy with the result instead of writing to `adata`.

    Returns
    -------
    None, or the copy if `copy=True`. Variables of the reference that `adata` lacks are set to their average; if more than
    20 % are missing, this is an error. Writes these fields:

    `adata.obs[key_added]`
        Cluster of each cell, with the categories of the reference or of its tree, and "unassigned" unless both limits are None.
    `adata.obs[key_added + "_confidence"]`
        Probability of the most likely cluster.
    `adata.obs[key_added + "_novelty"]`
        How unlike the reference's cells the cell is, together with the cells most similar to it in `adata`: the share of
        the reference's cells that are less unlike them. :meth:`scvcc.VCC.novelty` judges each cell by itself.
    `adata.obsm["X_" + key_added]`
        Coordinates on the reference's map.
    `adata.uns[key_added]`, `adata.uns[key_added + "_colors"]`
        How the result was made, and the reference's colors, if it had them when it was saved. `summary` holds the share of
        cells `unassigned`, the names of `empty_clusters`, the median (`novelty`) and the `lower_quartile` of the novelty of
        single cells (about 0.5 and 0.25 if they are like the reference's), and whether the query as a whole is
        `off_reference`, which also gives a warning.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import scanpy as sc
    >>> import scvcc
    >>> adata = sc.datasets.pbmc68k_reduced()
    >>> reference, query = adata[:500].copy(), adata[500:].copy()
    >>> sc.pp.pca(reference, n_comps=20)
    >>> sc.pp.neighbors(reference)
    >>> with TemporaryDirectory() as folder:
    ...     file = Path(folder) / "model.safetensors"
    ...     scvcc.tl.vcc(reference, n_clusters=6, hidden=(64,), progress=False, save_to=file)
    ...     scvcc.tl.map_query(query, file)
    >>> query.obsm["X_vcc"].shape
    (200, 2)
    """
    check_adata(adata, copy=copy)
    results.check_key(adata, key_added, "confidence", "novelty")
    start = info("mapping onto the reference")
    model, about = read_reference(reference)
    if n_clusters is not None:
        about = cut_reference(model, about, n_clusters)
    placed = place_query(adata, model, about, n_clusters)
    chosen = {"min_confidence": min_confidence, "max_novelty": max_novelty}
    limits = {name: limit for name, limit in chosen.items() if limit is not None}
    labeled = label_query(placed, len(about["categories"]), limits)
    record = {**limits, "summary": summarize(placed, labeled, about["categories"])}
    target = adata.copy() if copy else adata
    write_query(target, placed, labeled, about, record, key=key_added)
    info(f"    finished: labels in adata.obs[{key_added!r}] ({{time_passed}})", time=start)
    return target if copy else None
