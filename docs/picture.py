"""Draw the picture of the README: run its first Python block, save what it draws. `python docs/picture.py`."""

from __future__ import annotations

import re
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
PICTURE = HERE / "_static" / "digits.png"


def main() -> None:
    """Execute the snippet as printed."""
    readme = (HERE.parent / "README.md").read_text(encoding="utf-8")
    snippet = re.search(r"^```python\n(.*?)^```", readme, re.MULTILINE | re.DOTALL)
    if snippet is None:
        raise ValueError("README.md has no Python block.")
    exec(snippet.group(1), {})
    plt.gcf().savefig(PICTURE, dpi=150, metadata={"Software": None})


if __name__ == "__main__":
    main()
