"""Batches of an AnnData: which column names them, how well clusters mix them, and a warning if they were forgotten."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
from sklearn.metrics.cluster import contingency_matrix

from scvcc._anndata.messages import info, listed, log
from scvcc._model.neighbors import Batches, without_batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anndata import AnnData

    from scvcc._anndata.representation import Request
    from scvcc._training.graph import Matrix


def as_columns(batch_key: str | Sequence[str] | None) -> list[str] | None:
    """The columns that `batch_key` names."""
    if batch_key is None or isinstance(batch_key, str):
        return None if batch_key is None else [batch_key]
    if not len(batch_key):
        raise ValueError("batch_key is an empty list: name a column of adata.obs, or leave it out.")
    return [str(column) for column in batch_key]


def batches_of(adata: AnnData, batch_key: Sequence[str]) -> Batches:
    """The batches that one or several columns of obs name together."""
    for column in batch_key:
        if column not in adata.obs:
            raise ValueError(f"batch_key={column!r} is not a column of adata.obs, which has {listed(adata.obs)}.")
        if missing := int(adata.obs[column].isna().sum()):
            raise ValueError(f"batch_key={column!r} has {missing} missing values: fill them, or leave these cells out.")
    return Batches.of(adata.obs[list(batch_key)].astype(str).agg(" | ".join, axis=1), adata.n_obs, "batch_key")


def corrected(adata: AnnData, X: Matrix, request: Request) -> tuple[np.ndarray, pd.DataFrame]:
    """Components without differences between batches, and what was done to each batch."""
    batches = batches_of(adata, request.batch_key or [])
    correction = without_batches(X, batches, request.batch_strength, request.seed, info)
    numbers = {name: getattr(correction, name) for name in ("apart", "shift", "common")}
    columns = {"n_cells": np.bincount(batches.codes), "outcome": np.array(correction.outcome, dtype=object), **numbers}
    return correction.Z, pd.DataFrame(columns, index=pd.Index(batches.names, name="batch"))


def mixing(labels: np.ndarray, codes: np.ndarray) -> np.ndarray:
    """Of each cluster, the entropy of its batches relative to that of all cells: 0 a single batch, about 1 mixed."""
    table = contingency_matrix(labels, codes)
    share = table / table.sum(axis=1, keepdims=True)
    overall = np.bincount(codes) / len(codes)
    entropy = -(share * np.log(np.where(share > 0, share, 1))).sum(axis=1)
    return entropy / max(-(overall * np.log(overall)).sum(), 1e-12) + 0.0  # no negative zero


def mention_forgotten_batches(adata: AnnData, labels: np.ndarray, *, pure: float = 0.9, excess: float = 0.3) -> None:
    """Log a warning where clusters follow an obs column that usually names batches.

    A cluster follows it if nine in ten of its cells are of one batch that has a far smaller share of all cells; there is a
    warning if every fifth cell is in such a cluster.
    """
    usual = "batch chemistry donor individual lane library orig.ident patient plate replicate sample subject".split()
    for column in adata.obs:
        name = str(column).lower().removesuffix("_id").removesuffix("id").rstrip("_")
        codes = pd.factorize(adata.obs[column])[0]
        if name not in usual or codes.min() < 0 or not 2 <= codes.max() + 1 <= len(codes) / 20:
            continue
        table = contingency_matrix(labels, codes)
        share = table / table.sum(axis=1, keepdims=True)
        follows = (share.max(axis=1) >= pure) & (share - table.sum(axis=0) / len(codes) >= excess).any(axis=1)
        if follows[labels].mean() >= 0.2:
            clusters = ", ".join(map(str, np.flatnonzero(follows)))
            log.warning(
                "clusters %s are nearly all of one %s each: if that is a technical difference, not the one you study, "
                "run scvcc.tl.vcc(adata, batch_key=%r)",
                clusters,
                column,
                column,
            )
