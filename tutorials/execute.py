"""Execute the tutorials from top to bottom and store their outputs: `python tutorials/execute.py [--quick] [names]`.

With --quick nothing is stored, and a cell with "quick" in its metadata runs that code instead of its own, to be small.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
LARGEST = 1_000_000  # bytes of a stored notebook


def execute(notebook: nbformat.NotebookNode, *, quick: bool) -> None:
    """Run all cells in an empty folder, in a new kernel; an error in a cell ends it."""
    if quick:
        for cell in notebook.cells:
            cell.source = cell.metadata.get("quick", cell.source)
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, record_timing=False).execute(cwd=folder)
        check_outputs(notebook, {folder, str(HERE.parent.resolve()), str(Path.home())})


def check_outputs(notebook: nbformat.NotebookNode, private: set[str]) -> None:
    """Refuse warnings, and paths of this machine, in what would be published."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    for output in outputs:
        if output.get("name") == "stderr":
            raise ValueError(f"a cell wrote to stderr: {output.text}")
        texts = [output.get("text", ""), *(v for k, v in output.get("data", {}).items() if k.startswith("text"))]
        if any(path in text for path in private for text in texts):
            raise ValueError(f"an output holds a path of this machine: {texts}")


def store(notebook: nbformat.NotebookNode, path: Path) -> None:
    """Write the notebook without what differs from machine to machine."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    nbformat.write(notebook, path)
    if path.stat().st_size > LARGEST:
        raise ValueError(f"{path.name} has {path.stat().st_size} bytes, more than {LARGEST}: draw less")


def main() -> None:
    """Run the notebooks asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="run in a quick form, store nothing")
    parser.add_argument("names", nargs="*", help="beginnings of file names, such as 01; all without")
    options = parser.parse_args()
    os.environ.pop("MPLBACKEND", None)  # figures belong into the notebook
    os.environ["PYTHONWARNINGS"] = "ignore:IProgress not found"  # tqdm misses ipywidgets; no bars are shown here
    for path in sorted(HERE.glob("*.ipynb")):
        if options.names and not path.name.startswith(tuple(options.names)):
            continue
        started = time.perf_counter()
        notebook = nbformat.read(path, as_version=4)
        execute(notebook, quick=options.quick)
        if not options.quick:
            store(notebook, path)
        print(f"{path.name:32}{time.perf_counter() - started:6.0f} s", flush=True)


if __name__ == "__main__":
    main()
