"""New cells: what a model's file has to hold of its reference, and the projection of other cells with it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import scipy.sparse as sp
from anndata import AnnData

from scvcc import pp
from scvcc._anndata import inputs as _anndata
from scvcc._clusters import assignment as _assignment
from scvcc._model.vcc import VCC

if TYPE_CHECKING:
    from collections.abc import Mapping

    from scvcc._training.graph import Matrix

MISSING_LIMIT = 0.2  # share of the reference's variables that a query may lack
REPRODUCED = 1e-3  # relative error up to which stored loadings explain a stored representation
CHECKED_CELLS = 1_000
BLOCK = 8_192  # cells projected at a time; a multiple of the encoder's, so that blocks do not show in the result
UNASSIGNED, UNASSIGNED_COLOR = "unassigned", "#c8c8c8"
KEYS = {"X_pca": ("PCs", "pca"), "X_lsa": ("LSA", "lsa")}  # in varm and uns; any other name stands for itself


# ------------------------------------------------------------------------------------------------- the reference


def check_target(adata: AnnData, save_to: str | os.PathLike[str]) -> None:
    """Refuse a file that could not be written, or not be used, before anything is computed."""
    if not isinstance(save_to, (str, os.PathLike)):
        raise TypeError(f"save_to must be a path, found {type(save_to).__name__}.")
    path = Path(save_to)
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(f"save_to={str(path)!r} must name a file in a directory that exists.")
    if not adata.var_names.is_unique:
        raise ValueError("save_to needs unique names of variables: run adata.var_names_make_unique() first.")


def describe(
    adata: AnnData, representation: _anndata.Representation, *, key: str, categories: list[str]
) -> dict[str, Any]:
    """What `map_query` needs besides the model: names of variables, projection, categories and colors.

    Where the projection cannot be found, the reason takes its place.
    """
    try:
        projection = _projection(adata, representation)
    except ValueError as error:
        projection = {"kind": "unknown", "reason": str(error)}
        _anndata.warn(f"The saved model cannot be used with scvcc.tl.map_query. {error}")
    colors = adata.uns.get(f"{key}_colors")
    known = key not in adata.obs or list(map(str, adata.obs[key].astype("category").cat.categories)) == categories
    kept = list(map(str, colors)) if colors is not None and known and len(colors) >= len(categories) else []
    source = representation.source.name
    return {**projection, "use_rep": source, "categories": categories, "colors": kept[: len(categories)]}


def _projection(adata: AnnData, representation: _anndata.Representation) -> dict[str, Any]:
    source = representation.source
    names = adata.var_names.to_numpy().astype(object)
    if source.name == "X":
        negative = _has_negative(representation.X)
        return {"kind": "X", "layer": source.layer, "var_names": names, "negative": negative}

    varm_key, uns_key = KEYS.get(source.name, (source.name, source.name))
    stored = {slot: {**getattr(adata, slot), **representation.additions.get(slot, {})} for slot in ("varm", "uns")}
    if varm_key not in stored["varm"]:
        raise ValueError(
            f"It was trained on {source}, and adata.varm[{varm_key!r}] does not say how to compute that for other "
            "cells: run sc.pp.pca or scvcc.pp.lsa and use their result, or use_rep='X'."
        )
    params = _anndata._params(stored["uns"].get(uns_key))
    layer = params.get("layer")
    X = _anndata.variables(adata, layer)
    loadings = np.nan_to_num(np.asarray(stored["varm"][varm_key], dtype=np.float64)[:, : representation.X.shape[1]])
    used = np.flatnonzero(loadings.any(axis=1))
    X, found = X[:, used], {"layer": layer, "var_names": names[used], "components": loadings[used]}
    if "tfidf" in params:
        found |= {"kind": "lsa", "normalize": bool(params["normalize"]), "negative": False}
        if params["tfidf"]:
            found["idf"] = _term_weights(adata, pp._keys(source.name)[1])[used]
    else:
        # the PCA may be of more cells than are left, and so centered elsewhere: `shift` is where these cells' mean goes
        mean, shift = (np.asarray(M.mean(axis=0, dtype=np.float64)).ravel() for M in (X, representation.X))
        found |= {"kind": "pca", "mean": mean, "shift": shift, "negative": _has_negative(X)}
    _check_reproduced(X, found, representation, varm_key)
    return found


def _term_weights(adata: AnnData, column: str) -> np.ndarray:
    if column not in adata.var:
        raise ValueError(f"adata.var[{column!r}], the weights of the terms, is not there any more: run scvcc.pp.lsa.")
    return adata.var[column].to_numpy(np.float64)


def _check_reproduced(
    X: Matrix, projection: Mapping[str, Any], representation: _anndata.Representation, varm_key: str
) -> None:
    """Compare with the stored representation; the matrix may have changed since, or have been corrected."""
    rows = np.unique(np.linspace(0, X.shape[0] - 1, CHECKED_CELLS).astype(int))
    Z = _dense(representation.X[rows])
    error = np.linalg.norm(_project(projection, X[rows]) - Z)
    if not error <= REPRODUCED * np.linalg.norm(Z):
        where = "adata.X" if projection["layer"] is None else f"adata.layers[{projection['layer']!r}]"
        raise ValueError(
            f"Projecting {where} with adata.varm[{varm_key!r}] does not give {representation.source}: the matrix has "
            "changed since, or the result was corrected. Compute it again from the matrix that new cells will have."
        )


def _dense(X: Any) -> np.ndarray:
    return X.toarray() if sp.issparse(X) else np.asarray(X)


def _has_negative(X: Matrix) -> bool:
    return bool(_anndata.stored_values(X).min(initial=0) < 0)


# ------------------------------------------------------------------------------------------------- the query


def read_reference(reference: Any) -> tuple[VCC, dict[str, Any]]:
    """Return the model and its description, checked against each other."""
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
            "For a matrix that is prepared already, use its predict."
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


def place(adata: AnnData, model: VCC, about: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray | None]:
    """Map of new cells, (n, latent_dim), and their novelty, (n,), unless the model is too old to tell.

    Their variables are found by name; then follow the reference's projection and the encoder.
    """
    layer = about["layer"]
    if layer is not None and layer not in adata.layers:
        raise ValueError(f"The reference was trained on layer {layer!r}, which is not in adata.layers.")
    columns = _aligned(adata, np.asarray(about["var_names"], dtype=object))
    present = np.flatnonzero(columns >= 0)
    X = _anndata.variables(adata, layer)[:, columns[present]]
    _anndata.finite(X, "adata.X" if layer is None else f"adata.layers[{layer!r}]")
    _warn_about_values(X, about)
    fill = model.encoder_.center.cpu().numpy()
    blocks = (slice(start, start + BLOCK) for start in range(0, X.shape[0], BLOCK))
    projected = (_project(about, X[rows], present, fill) for rows in blocks)
    if model.sample_ is None:
        return np.concatenate([model.transform(Z) for Z in projected]), None
    H, novelty = zip(*(model._place(Z) for Z in projected), strict=True)
    return np.concatenate(H), np.concatenate(novelty)


def _aligned(adata: AnnData, names: np.ndarray) -> np.ndarray:
    """Column of each of the reference's variables, −1 where it is missing."""
    if not adata.var_names.is_unique:
        raise ValueError("adata.var_names has duplicates: run adata.var_names_make_unique() first.")
    if adata.n_vars == 0:
        raise ValueError(
            f"adata has no variables, and the reference has {len(names)}: give the cells with their genes."
        )
    columns = adata.var_names.get_indexer(pd.Index(names))
    n_missing = int((columns < 0).sum())
    if n_missing > MISSING_LIMIT * len(names):
        raise ValueError(
            f"{n_missing} of the {len(names)} variables of the reference are missing, more than {MISSING_LIMIT:.0%}: "
            f"the reference has names such as {names[0]!r}, adata such as {adata.var_names[0]!r}."
        )
    if n_missing:
        _anndata.warn(f"{n_missing} of the {len(names)} variables of the reference are missing and taken as average.")
    return columns


def _warn_about_values(X: Matrix, about: Mapping[str, Any]) -> None:
    if about["kind"] == "lsa":
        return
    _anndata.warn_if_counts(X, "adata")
    if _has_negative(X) != about["negative"]:
        has, lacks = ("adata", "the reference") if about["negative"] is False else ("the reference", "adata")
        _anndata.warn(
            f"{has} has negative values and {lacks} has none: prepare both in one way. Data scaled with sc.pp.scale "
            "need the reference's means and standard deviations, not their own."
        )


def _project(
    about: Mapping[str, Any], X: Matrix, present: np.ndarray | slice = slice(None), fill: np.ndarray | None = None
) -> Matrix:
    """Apply the reference's projection to the variables that are present; the others are at their mean."""
    if about["kind"] == "lsa":
        idf = about.get("idf")
        idf = None if idf is None else idf[present].astype(np.float32)
        return pp._project(X, idf, about["components"][present].astype(np.float32), normalize=about["normalize"])
    if about["kind"] == "pca":
        components = about["components"][present]
        offset = about["mean"][present] @ components - about.get("shift", 0)  # older files have no shift
        return np.asarray(X @ components - offset, dtype=np.float32)
    if fill is None or X.shape[1] == len(fill):
        return X
    full = np.tile(fill, (X.shape[0], 1))
    full[:, present] = _dense(X)
    return full


def write_query(
    adata: AnnData,
    H: np.ndarray,
    novelty: np.ndarray | None,
    model: VCC,
    about: Mapping[str, Any],
    *,
    key: str,
    min_confidence: float | None,
    max_novelty: float | None,
) -> None:
    """Write place, label, confidence and novelty; all values are computed before the first one is set."""
    codes = _assignment.nearest_center(H, model.cluster_centers_)
    proba = _assignment.probabilities(H, model.cluster_centers_, model.sharpness_)
    confidence = proba.max(axis=1).astype(np.float32)
    categories, colors = list(about["categories"]), list(about["colors"])
    if min_confidence is not None or max_novelty is not None:
        doubtful = confidence < (0 if min_confidence is None else min_confidence)
        if max_novelty is not None and novelty is not None:
            doubtful |= novelty > max_novelty
        codes = np.where(doubtful, len(categories), codes)
        categories, colors = [*categories, UNASSIGNED], [*colors, UNASSIGNED_COLOR] if colors else []
    limits = {"min_confidence": min_confidence, "max_novelty": max_novelty}
    record = {"mapped": True, **limits, "representation": {"use_rep": about["use_rep"]}}
    uns = {key: _anndata.storable(record), **({f"{key}_colors": np.array(colors)} if colors else {})}
    obs = {"confidence": confidence, **({} if novelty is None else {"novelty": novelty})}
    labels = pd.Categorical.from_codes(codes, categories=categories)
    _anndata.write_fields(adata, key, labels, obs=obs, obsm={f"X_{key}": H}, uns=uns)
