"""Tools: functions that compute something and write it into an AnnData."""

from scvcc.tl._cut import cut
from scvcc.tl._query import map_query
from scvcc.tl._stability import stability
from scvcc.tl._suggest import suggest_n_clusters
from scvcc.tl._support import test_clusters
from scvcc.tl._vcc import vcc

__all__ = ["cut", "map_query", "stability", "suggest_n_clusters", "test_clusters", "vcc"]


def __dir__() -> list[str]:
    return list(__all__)
