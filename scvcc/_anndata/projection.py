"""How cells get from their variables to the representation that a model was trained on, so that new cells can follow."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import scipy.sparse as sp
from anndata import AnnData
from sklearn.preprocessing import normalize as unit_rows

from scvcc._anndata.matrices import at_hand, has_negative, name_of, variables
from scvcc._anndata.representation import Representation, Source, keys_beside, params_of
from scvcc._clusters.novelty import expected_shrinkage
from scvcc._model.checks import warn
from scvcc._model.rows import in_memory, take_rows
from scvcc._training.graph import Matrix, dense


def describe(adata: AnnData, representation: Representation, *, key: str, categories: list[str]) -> dict[str, Any]:
    """What `map_query` needs besides the model: names of variables, projection, categories and colors.

    Where the projection cannot be found, the reason takes its place.
    """
    try:
        projection = _projection(adata, representation)
    except ValueError as error:
        projection = {"kind": "unknown", "reason": str(error)}
        warn(f"The saved model cannot be used with scvcc.tl.map_query. {error}")
    colors = list(map(str, adata.uns.get(f"{key}_colors", ())))[: len(categories)]
    if len(colors) < len(categories) or list(adata.obs[key].cat.categories) != categories:
        colors = []
    return {**projection, "use_rep": representation.source.name, "categories": categories, "colors": colors}


def _projection(adata: AnnData, representation: Representation) -> dict[str, Any]:
    source = representation.source
    names = adata.var_names.to_numpy().astype(object)
    if source.name == "X":
        negative = has_negative(at_hand(representation.X))
        return {"kind": "X", "layer": source.layer, "var_names": names, "negative": negative}
    varm_key, uns_key, idf_key = keys_beside(source.name)
    if varm_key not in adata.varm:
        raise ValueError(
            f"It was trained on {source}, and adata.varm[{varm_key!r}] does not say how to compute that for other "
            "cells: run sc.pp.pca or scvcc.pp.lsa and use their result, or use_rep='X'."
        )
    params = params_of(adata.uns.get(uns_key))
    layer = params.get("layer")
    X, Z = variables(adata, layer, blocks=True), representation.X
    if not (in_memory(X) and in_memory(Z)):  # many cells tell what a projection centers on as well as all do
        rows = np.unique(np.linspace(0, X.shape[0] - 1, 20_000).astype(int))
        X, Z = take_rows(X, rows), take_rows(Z, rows)
    loadings = np.nan_to_num(np.asarray(adata.varm[varm_key], dtype=np.float64)[:, : Z.shape[1]])
    used = np.flatnonzero(loadings.any(axis=1))
    X, projection = X[:, used], {"layer": layer, "var_names": names[used], "components": loadings[used]}
    if "tfidf" in params:
        projection |= {"kind": "lsa", "normalize": bool(params["normalize"]), "negative": False}
        if params["tfidf"]:
            if idf_key not in adata.var:
                raise ValueError(
                    f"adata.var[{idf_key!r}], the weights of the terms, is missing from adata: run scvcc.pp.lsa."
                )
            projection["idf"] = adata.var[idf_key].to_numpy(np.float64)[used]
    else:
        # the PCA may be of more cells than are left, and so centered elsewhere: `shift` is where these cells' mean goes
        mean, shift = (np.asarray(M.mean(axis=0, dtype=np.float64)).ravel() for M in (X, Z))
        projection |= {"kind": "pca", "mean": mean, "shift": shift, "negative": has_negative(X)}
    _check_reproduced(X, Z, projection, representation.source, varm_key)
    return projection


def shrinkage(adata: AnnData, about: Mapping[str, Any]) -> np.ndarray | None:
    """How much nearer to the mean new cells come on each component of the PCA that `about` describes; None if unknown."""
    params = adata.uns.get(keys_beside(about["use_rep"])[1])
    if about["kind"] != "pca" or not isinstance(params, Mapping) or not {"variance", "variance_ratio"} <= set(params):
        return None
    variance, ratio = (np.asarray(params[name], np.float64) for name in ("variance", "variance_ratio"))
    p, d = np.shape(about["components"])
    if len(variance) < d or not (variance > 0).all() or not (ratio > 0).all():
        return None
    return expected_shrinkage(variance, variance[0] / ratio[0], adata.n_obs, p)[:d]


def _check_reproduced(
    X: Matrix, Z: Matrix, projection: Mapping[str, Any], source: Source, varm_key: str, tolerance: float = 1e-3
) -> None:
    """Compare 1,000 rows with the stored representation: the matrix may have changed since, or have been corrected."""
    rows = np.unique(np.linspace(0, X.shape[0] - 1, 1_000).astype(int))
    Z = dense(Z[rows])
    error = np.linalg.norm(project(projection, X[rows]) - Z)
    if not error <= tolerance * np.linalg.norm(Z):
        raise ValueError(
            f"Projecting {name_of(projection['layer'])} with adata.varm[{varm_key!r}] does not give "
            f"{source}: the matrix has changed since, or the result was corrected. Compute it again from "
            "the matrix that new cells will have."
        )


def project(
    about: Mapping[str, Any], X: Matrix, present: np.ndarray | slice = slice(None), fill: np.ndarray | None = None
) -> Matrix:
    """Apply the reference's projection to the variables that are present; the others are at their mean."""
    if about["kind"] == "lsa":
        idf = about.get("idf")
        idf = None if idf is None else idf[present].astype(np.float32)
        components = about["components"][present].astype(np.float32)
        return project_documents(X, idf, components, normalize=about["normalize"])
    if about["kind"] == "pca":
        components = about["components"][present]
        return np.asarray(X @ components - (about["mean"][present] @ components - about["shift"]), dtype=np.float32)
    if fill is None or X.shape[1] == len(fill):
        return X
    full = np.tile(fill, (X.shape[0], 1))
    full[:, present] = dense(X)
    return full


def project_documents(X: Matrix, idf: np.ndarray | None, components: np.ndarray, *, normalize: bool) -> np.ndarray:
    """Project documents onto LSA components; `idf` is None where `X` is weighted already."""
    Z = np.asarray(weighted_terms(X, idf) @ components, dtype=np.float32)
    return unit_rows(Z) if normalize else Z


def weighted_terms(X: Matrix, idf: np.ndarray | None) -> Matrix:
    """Apply the weights of the terms and scale each document to length 1; None leaves `X` as it is."""
    if idf is None:
        return X
    return unit_rows(X @ sp.diags(idf) if sp.issparse(X) else X * idf, copy=False)
