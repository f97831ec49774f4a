"""Plots of a result: the map, the training behind it, the clusters, and how they compare with known groups."""

from scvcc.pl._clusters import composition, confusion, n_clusters, stability
from scvcc.pl._evidence import support
from scvcc.pl._maps import vcc
from scvcc.pl._training import history, similarity, stages
from scvcc.pl._tree import tree

__all__ = [
    "composition",
    "confusion",
    "history",
    "n_clusters",
    "similarity",
    "stability",
    "stages",
    "support",
    "tree",
    "vcc",
]


def __dir__() -> list[str]:
    return list(__all__)
