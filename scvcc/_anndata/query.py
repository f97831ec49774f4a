"""New cells: the model they are labeled with, their way through its projection, and what is written."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from anndata import AnnData

from scvcc._anndata.matrices import at_hand, finite, has_negative, name_of, variables, warn_if_counts
from scvcc._anndata.messages import info, listed
from scvcc._anndata.projection import project
from scvcc._anndata.results import write_fields
from scvcc._clusters.assignment import nearest_center
from scvcc._model.checks import warn
from scvcc._model.files import writable
from scvcc._model.placing import check_cut, place, probabilities, relabeled
from scvcc._model.vcc import VCC
from scvcc._training.graph import Matrix


@dataclass(frozen=True)
class Placed:
    """New cells on a reference's map."""

    H: np.ndarray  # (n, latent_dim)
    novelty: np.ndarray  # (n,) pooled
    alone: np.ndarray  # (c,) of some of the cells, each by itself
    labels: np.ndarray  # (n,)
    confidence: np.ndarray  # (n,)


@dataclass(frozen=True)
class Labeled:
    """What new cells are called."""

    codes: np.ndarray  # (n,) cluster, or the number of clusters for "unassigned"
    confidence: np.ndarray  # (n,)


def check_target(adata: AnnData, save_to: str | os.PathLike[str]) -> None:
    """Refuse a file that could not be written, or not be used, before anything is computed."""
    if not isinstance(save_to, (str, os.PathLike)):
        raise TypeError(f"save_to must be a path, found {type(save_to).__name__}.")
    try:
        writable(save_to)
    except ValueError as error:
        raise ValueError(f"save_to: {error}") from error
    if not adata.var_names.is_unique:
        raise ValueError("save_to needs unique names of variables: run adata.var_names_make_unique() first.")


def read_reference(reference: Any) -> tuple[VCC, dict[str, Any]]:
    """The model and its description, checked against each other."""
    if isinstance(reference, AnnData):
        raise TypeError(
            "reference must be a model: an AnnData does not hold the encoder. Run scvcc.tl.vcc(adata, "
            "save_to='model.safetensors') on the reference and give that file."
        )
    if not isinstance(reference, (VCC, str, os.PathLike)):
        raise TypeError(f"reference must be the path of a saved model or a VCC, found {type(reference).__name__}.")
    model = reference if isinstance(reference, VCC) else VCC.load(reference)
    about = getattr(model, "extra_", {})
    if "kind" not in about:
        raise ValueError(
            "reference does not say which variables it was trained on: save it with scvcc.tl.vcc(adata, save_to=...). "
            "If you have the prepared matrix, use the predict method of scvcc.VCC."
        )
    if about["kind"] not in ("X", "pca", "lsa"):
        raise ValueError(
            f"reference cannot project new cells. {about.get('reason', '')} If you can compute {about.get('use_rep')!r} "
            "for them as for the reference, use predict of scvcc.VCC.load(path)."
        )
    p, d = len(about["var_names"]), model.n_features_in_
    shapes = {"components": (p, d), "mean": (p,), "shift": (d,), "idf": (p,)}
    fits = all(np.shape(about[name]) == shape for name, shape in shapes.items() if name in about)
    if not fits or len(about["categories"]) != model.n_clusters_ or (about["kind"] == "X" and p != d):
        raise ValueError("reference contradicts itself: its projection or categories do not fit its encoder.")
    return model, about


def place_query(adata: AnnData, model: VCC, about: Mapping[str, Any], n_clusters: int | None = None) -> Placed:
    """New cells on the reference's map.

    Their variables are found by name; then follow the reference's projection and the encoder.
    """
    layer = about["layer"]
    if layer is not None and layer not in adata.layers:
        raise ValueError(f"The reference was trained on layer {layer!r}, which is not in adata.layers.")
    columns = _aligned(adata, np.asarray(about["var_names"], dtype=object))
    present = np.flatnonzero(columns >= 0)
    X, used = variables(adata, layer, blocks=True), columns[present]
    if sp.issparse(X):
        X = sp.csr_matrix(X)
    _warn_about_values(at_hand(X)[:, used], about)
    fill = model.encoder_.center.cpu().numpy()
    projection = partial(_project_block, about, used, present, fill, name_of(layer))
    H, novelty, alone = place(model, X, projection)
    if n_clusters is None:
        found = nearest_center(H, model.cluster_centers_), probabilities(model, H).max(axis=1)
    else:
        found = relabeled(model, X, projection, n_clusters)
    return Placed(H, novelty, alone, *found)


def cut_reference(model: VCC, about: dict[str, Any], n_clusters: int) -> dict[str, Any]:
    """The description of a reference whose tree is cut into `n_clusters`; only fitted clusters have colors."""
    check_cut(n_clusters, len(model.tree_.size))
    return {**about, "categories": model.tree_.names(n_clusters, list(about["categories"])), "colors": []}


def _project_block(
    about: Mapping[str, Any], used: np.ndarray, present: np.ndarray, fill: np.ndarray, name: str, block: Matrix
) -> Matrix:
    return project(about, finite(block[:, used], name), present, fill)


def _aligned(adata: AnnData, names: np.ndarray, most_missing: float = 0.2) -> np.ndarray:
    """Column of each of the reference's variables, −1 where it is missing."""
    if not adata.var_names.is_unique:
        raise ValueError("adata.var_names has duplicates: run adata.var_names_make_unique() first.")
    if adata.n_vars == 0:
        raise ValueError(
            f"adata has no variables, and the reference has {len(names)}: give the cells with their genes."
        )
    columns = adata.var_names.get_indexer(pd.Index(names))
    n_missing = int((columns < 0).sum())
    if n_missing > most_missing * len(names):
        raise ValueError(
            f"{n_missing} of the {len(names)} variables of the reference are missing, more than {most_missing:.0%}: "
            f"the reference has names such as {names[0]!r}, adata such as {adata.var_names[0]!r}."
        )
    if n_missing:
        warn(f"{n_missing} of the {len(names)} variables of the reference are missing and set to their average.")
    return columns


def _warn_about_values(X: Matrix, about: Mapping[str, Any]) -> None:
    if about["kind"] == "lsa":
        return
    warn_if_counts(X, "adata")
    if has_negative(X) != about["negative"]:
        has, lacks = ("adata", "the reference") if about["negative"] is False else ("the reference", "adata")
        warn(
            f"{has} has negative values and {lacks} has none: prepare both in the same way. Data scaled with sc.pp.scale "
            "need the reference's means and standard deviations, not their own."
        )


def label_query(placed: Placed, n_clusters: int, limits: Mapping[str, float]) -> Labeled:
    """Cluster and confidence of each cell; a cell beyond one of the limits gets the number after the last cluster."""
    confidence = placed.confidence.astype(np.float32)
    doubtful = (confidence < limits.get("min_confidence", 0)) | (placed.novelty > limits.get("max_novelty", 1))
    return Labeled(np.where(doubtful, n_clusters, placed.labels), confidence)


def summarize(placed: Placed, labeled: Labeled, names: Sequence[str]) -> dict[str, Any]:
    """What there is to say of the query as a whole, which is also told."""
    counts = np.bincount(labeled.codes, minlength=len(names) + 1)
    empty = [name for name, count in zip(names, counts, strict=False) if not count]
    low, middle = np.quantile(placed.alone, [0.25, 0.5])
    is_off = bool(low > 0.6 and len(placed.alone) >= 20)  # .25 is usual; CTRL against STIM of ifnb has .88
    info(
        f"    {counts[-1] / counts.sum():.1%} of the cells are unassigned; median novelty of single cells {middle:.2f} "
        f"(0.50 for cells like the reference's); clusters without cells: {listed(empty) if empty else 'none'}"
    )
    if is_off:
        warn(
            f"The query as a whole is unlike the reference: three quarters of its cells are more novel than {low:.0%} of "
            "the reference's. It may come from another condition or chemistry, be normalized or scaled in another way, lack "
            "genes, or hold only cell types that the reference lacks. Its labels may be wrong."
        )
    return {
        "unassigned": float(counts[-1] / counts.sum()),
        "novelty": float(middle),
        "lower_quartile": float(low),
        "off_reference": is_off,
        "empty_clusters": empty,
    }


def write_query(
    adata: AnnData, placed: Placed, labeled: Labeled, about: Mapping[str, Any], record: Mapping[str, Any], *, key: str
) -> None:
    """Write place, label, confidence and novelty; all values are computed before the first one is set."""
    categories, colors = list(about["categories"]), list(about["colors"])
    if "min_confidence" in record or "max_novelty" in record:
        categories, colors = [*categories, "unassigned"], [*colors, "#c8c8c8"] if colors else []
    labels = pd.Categorical.from_codes(labeled.codes, categories=categories)
    record = {"mapped": True, **record, "representation": {"use_rep": about["use_rep"]}}
    uns = {f"{key}_colors": np.array(colors)} if colors else {}
    obs = {"confidence": labeled.confidence, "novelty": placed.novelty}
    write_fields(adata, key, labels, record, obs=obs, obsm={f"X_{key}": placed.H}, uns=uns)
