"""The tree of a run as `adata` holds it: the record in `uns`, and the leaf of each cell in `obs`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import pandas as pd
from anndata import AnnData

from scvcc._clusters.tree import Tree

FIELDS = [field.name for field in fields(Tree)]


def tree_record(tree: Tree, clusters: Sequence[str]) -> dict[str, Any]:
    """What `uns` keeps of a tree; `clusters` names the fitted ones."""
    return {**{name: getattr(tree, name) for name in FIELDS}, "clusters": np.array(clusters)}


def leaf_column(tree: Tree, clusters: Sequence[str], leaves: np.ndarray, cells: np.ndarray) -> pd.Categorical:
    """The name of the leaf of each of the `cells` (bool), missing for the others."""
    codes = np.full(len(cells), -1)
    codes[cells] = leaves
    return pd.Categorical.from_codes(codes, categories=tree.names(len(tree.size), clusters))


@dataclass(frozen=True)
class StoredTree:
    """A tree, the names of its fitted clusters, the leaf of each cell (-1: none), and p-values of splits (NaN: none)."""

    tree: Tree
    clusters: list[str]
    leaf: np.ndarray
    p: np.ndarray

    def labels(self, n_clusters: int, others: pd.Series, group: np.ndarray | None = None) -> pd.Categorical:
        """Names of the clusters of a cut, those of a `group` joined; cells that were not clustered keep theirs in `others`."""
        names = self.tree.names(n_clusters, self.clusters)
        names = names if group is None else self.tree.joined(names, group)
        label = others.astype(object).map(str, na_action="ignore").to_numpy(object, copy=True)
        known = self.leaf >= 0
        label[known] = np.array(names, dtype=object)[self.tree.cut(n_clusters)[self.leaf[known]]]
        rest = [name for name in dict.fromkeys(label[~known]) if isinstance(name, str) and name not in names]
        return pd.Categorical(label, categories=[*dict.fromkeys(names), *sorted(rest)])


def stored_tree(adata: AnnData, key: str) -> StoredTree:
    """Read the tree of a run back; cells may have been removed since."""
    run, column = adata.uns.get(key), f"{key}_leaf"
    record = run.get("tree") if isinstance(run, Mapping) else None
    if record is None or column not in adata.obs or key not in adata.obs:
        raise ValueError(f"adata holds no tree named {key!r}: run scvcc.tl.vcc(adata, key_added={key!r}) first.")
    if "fields" not in run or not {*FIELDS, "clusters"} <= set(record):
        raise ValueError(f"adata.uns[{key!r}] is incomplete: run scvcc.tl.vcc again.")
    tree = Tree(*(np.asarray(record[name]) for name in FIELDS))
    clusters = list(map(str, record["clusters"]))
    names = pd.Index(tree.names(len(tree.size), clusters))
    p = np.asarray(record.get("p", np.full(len(tree.link), np.nan)))
    return StoredTree(tree, clusters, names.get_indexer(adata.obs[column].astype(object)), p)
