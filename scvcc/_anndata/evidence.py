"""Evidence for clusters as `adata` holds it: tables of pairs and of clusters."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from scvcc._clusters.evidence import LEVEL, Support


def support_tables(support: Support, names: Sequence[str], labels: np.ndarray) -> dict[str, Any]:
    """The pairs of neighboring clusters with their p-values, and the clusters."""
    a, b = (np.asarray(names, dtype=object)[support.pairs[:, side]] for side in (0, 1))
    pairs = pd.DataFrame({"a": a, "b": b, "link": support.link, "p": support.p, "supported": support.p < LEVEL})
    pairs.index = pd.RangeIndex(len(pairs)).astype(str)
    supported = ~np.isin(np.arange(len(names)), support.weak)
    sizes = np.bincount(labels, minlength=len(names))
    clusters = pd.DataFrame({"n_cells": sizes, "supported": supported}, index=pd.Index(names, name="cluster"))
    return {"pairs": pairs, "clusters": clusters}


def merged_names(names: Sequence[str], parent: np.ndarray) -> list[str]:
    """The name of each cluster after merging: names that share a parent, joined by "+"."""
    joined = [
        "+".join(name for name, k in zip(names, parent, strict=True) if k == new) for new in range(max(parent) + 1)
    ]
    return [joined[k] for k in parent]
