"""The command line: what it hands to `tl` and `pl`, the files it leaves, and what it says."""

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import import_module
from pathlib import Path

import anndata as ad
import numpy as np
import pandas as pd
import pytest
import scanpy as sc
import scipy.sparse as sp

import scvcc
from scvcc import cli

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "howto" / "pipelines.md").read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def verbosity():
    before = sc.settings.verbosity
    yield
    sc.settings.verbosity = before


@pytest.fixture
def cells(blobs, tmp_path, monkeypatch):
    """A file with cells in a folder of its own, which is the working directory."""
    monkeypatch.chdir(tmp_path)
    blobs.write_h5ad("cells.h5ad")
    return blobs


FIT = "fit cells.h5ad --n-clusters 4 --use-rep X --out out.h5ad --quiet".split()


def test_commands_do_what_the_functions_do(cells, capsys):
    assert cli.main([*FIT, "--model", "model.safetensors", "--plot", "map.png", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    scvcc.tl.vcc(cells, 4, use_rep="X", progress=False, save_to="other.safetensors")
    written = ad.read_h5ad("out.h5ad")
    assert written.obs["vcc"].tolist() == cells.obs["vcc"].tolist()
    np.testing.assert_array_equal(written.obsm["X_vcc"], cells.obsm["X_vcc"])
    assert said["sizes"] == cells.obs["vcc"].value_counts(sort=False).to_dict()
    assert (said["command"], said["n_cells"], said["n_clusters"], said["out"]) == ("fit", 240, 4, "out.h5ad")
    assert Path("map.png").read_bytes().startswith(b"\x89PNG")

    new = ad.read_h5ad("cells.h5ad")[:100].copy()
    new.write_zarr("new.zarr")
    limits = {"min_confidence": 0.5, "max_novelty": 0.9}
    arguments = "map new.zarr --model model.safetensors --out mapped.zarr --min-confidence .5 --max-novelty .9 --quiet"
    assert cli.main([*arguments.split(), "--key-added", "place"]) == 0
    scvcc.tl.map_query(new, "other.safetensors", key_added="place", **limits)
    mapped = ad.read_zarr("mapped.zarr")
    assert mapped.obs["place"].tolist() == new.obs["place"].tolist()
    np.testing.assert_array_equal(mapped.obs["place_novelty"], new.obs["place_novelty"])
    assert cli.main("plot mapped.zarr --key place --color place gene1 --out map.pdf".split()) == 0
    assert Path("map.pdf").read_bytes().startswith(b"%PDF")
    assert capsys.readouterr().out == ""
    assert not [name for name in os.listdir() if name.startswith(".")]


@pytest.mark.parametrize("suffix", ["h5ad", "zarr"])
def test_matrices_of_new_cells_stay_on_disk(suffix, cells, monkeypatch):
    lazy, found = pytest.importorskip("dask.array").Array, {}
    assert cli.main([*FIT, "--model", "model.safetensors"]) == 0
    cells.raw = cells.copy()
    cells.X = sp.csr_matrix(cells.X)
    cells.layers["dense"] = cells.X.toarray()
    cells.uns["table"] = cells.obs.head(3)
    getattr(cells, f"write_{suffix}")(f"new.{suffix}")
    in_memory = scvcc.tl.map_query

    def spy(adata, *arguments, **named):
        found.update(X=adata.X, raw=adata.raw.X, layer=adata.layers["dense"])
        in_memory(adata, *arguments, **named)

    monkeypatch.setattr(scvcc.tl, "map_query", spy)
    assert cli.main(f"map new.{suffix} --model model.safetensors --out mapped.{suffix} --quiet".split()) == 0
    in_memory(cells, "model.safetensors")
    mapped = getattr(ad, f"read_{suffix}")(f"mapped.{suffix}")
    for name in ("obs", "var"):
        pd.testing.assert_frame_equal(getattr(mapped, name), getattr(cells, name))
    for ours, theirs in (
        (mapped.X, cells.X),
        (mapped.raw.X, cells.raw.X),
        (mapped.layers["dense"], cells.layers["dense"]),
    ):
        assert type(ours) is type(theirs) and (ours != theirs).sum() == 0
    np.testing.assert_array_equal(mapped.obsm["X_vcc"], cells.obsm["X_vcc"])
    assert {*mapped.uns} == {*cells.uns}
    assert mapped.uns["vcc"]["summary"]["novelty"] == cells.uns["vcc"]["summary"]["novelty"]
    pd.testing.assert_frame_equal(mapped.uns["table"], cells.uns["table"])
    assert {name: isinstance(matrix, lazy) for name, matrix in found.items()} == dict.fromkeys(found, True)


def test_new_cells_are_read_where_dask_is_missing(cells, monkeypatch):
    assert cli.main([*FIT, "--model", "model.safetensors"]) == 0
    monkeypatch.setitem(sys.modules, "dask.array", None)
    assert cli.main("map cells.h5ad --model model.safetensors --out mapped.h5ad --quiet".split()) == 0
    scvcc.tl.map_query(cells, "model.safetensors")
    assert ad.read_h5ad("mapped.h5ad").obs["vcc"].tolist() == cells.obs["vcc"].tolist()


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ("fit nothing.h5ad --out out.h5ad", "nothing.h5ad does not exist"),
        ("fit cells.h5ad --out out.csv", "out.csv must end in .h5ad or .zarr"),
        ("fit cells.h5ad --out there.h5ad", "there.h5ad exists"),
        ("fit cells.h5ad --out out.h5ad --model there.h5ad", "there.h5ad exists"),
        ("fit cells.h5ad --out out.h5ad --plot there.h5ad", "there.h5ad exists"),
        ("plot cells.h5ad --out there.h5ad", "there.h5ad exists"),
        ("fit cells.h5ad --out ./cells.h5ad --force", "needs its own name"),
        ("fit cells.h5ad --out out.h5ad --plot ./out.h5ad", "needs its own name"),
        ("map cells.h5ad --model there.h5ad --out there.h5ad --force", "needs its own name"),
        ("fit cells.h5ad --out no/out.h5ad", "no is not a directory"),
        ("fit cells.h5ad --out out.h5ad --n-clusters 1", "n_clusters must be"),
        ("fit cells.h5ad --out out.h5ad --batch-key nothing", "nothing"),
        ("map cells.h5ad --model there.h5ad --out out.h5ad", "cannot be loaded"),
        ("plot cells.h5ad --out map.png", "vcc"),
    ],
)
def test_what_cannot_work_is_refused_and_leaves_nothing(cells, capsys, arguments, reason):
    Path("there.h5ad").write_text("mine")
    assert cli.main(arguments.split()) == 1
    said = capsys.readouterr()
    assert reason in said.err and said.out == ""
    assert sorted(os.listdir()) == ["cells.h5ad", "there.h5ad"]
    assert Path("there.h5ad").read_text() == "mine"


NUMBERS = [
    f"--{name}" for table in (cli.FIT, cli.MAP) for name, kind in table.items() if kind.get("type") in (int, float)
]
REFUSED = {  # by option: what is no such thing at all is left to the table of all numbers below
    "--n-clusters": ("0", "-1", "1", "241", "1" * 30),
    "--n-pcs": ("-1", "21", "1" * 30),
    "--n-neighbors": ("0", "1", "-3", "240", "1" * 30),
    "--min-cluster-size": ("0", "-1"),
    "--max-train-cells": ("0", "1", "-1"),
    "--n-jobs": ("0", "-2", "1" * 30),
    "--random-state": ("-1", "1" * 30),
    "--use-rep": ("", "gone", "X_gone"),
    "--layer": ("", "gone"),
    "--neighbors-key": ("", "gone"),
    "--metric": ("", "gone", "haversine"),
    "--batch-key": ("", "gone", "gone truth"),
    "--device": ("", "gpu", "cuda:99", "xpu"),
    "--key-added": ("", "a/b", "neighbors", "truth"),
    "--checkpoint": ("cells.h5ad", "out.h5ad", "no/fit", ".", "there"),
    "--model": ("cells.h5ad", "no/model", "there", "."),
    "--plot": ("cells.h5ad", "no/map.png", "there"),
}
OF_THE_MAP = {
    "--n-clusters": ("0", "-1", "1" * 30),
    "--min-confidence": ("-0.1", "1.1", "nan", "inf"),
    "--max-novelty": ("-0.1", "1.1", "nan", "-inf"),
    "--key-added": ("", "a/b", "neighbors", "truth"),
    "--model": ("gone", "cells.h5ad", "there", "."),
}
WRONG_LINES = [
    "", "cluster cells.h5ad", "fit", "fit cells.h5ad", "fit --out out.h5ad", "map cells.h5ad --out out.h5ad", "plot cells.h5ad",
    "fit cells.h5ad other.h5ad --out out.h5ad", "fit cells.h5ad --out", "fit cells.h5ad --out out.h5ad --nonsense 1",
    "fit cells.h5ad --out out.h5ad --batch-key", "plot cells.h5ad --out a.png --color",
    *(f"fit cells.h5ad --out out.h5ad {option} {bad}" for option in NUMBERS for bad in ("x", "1.5.2", "1,5", "None", "True")),
]  # fmt: skip


@pytest.fixture(scope="module")
def mapped(tmp_path_factory, _clustered):
    """A folder with cells, a model and a file of someone else's."""
    folder = tmp_path_factory.mktemp("cli")
    _clustered.copy().write_h5ad(folder / "cells.h5ad")
    scvcc.tl.vcc(_clustered.copy(), 2, hidden=(8,), epochs=0, progress=False, save_to=folder / "model.safetensors")
    (folder / "there").write_text("mine")
    return folder


def check_refused(folder, capsys, monkeypatch, arguments, code):
    """The exit code, a reason in a few words on stderr, nothing on stdout, and the folder as it was."""
    monkeypatch.chdir(folder)
    before = {name: (folder / name).read_bytes() for name in os.listdir()}
    try:
        found = cli.main(arguments)
    except SystemExit as ended:
        found = ended.code
    said = capsys.readouterr()
    assert found == code, said.err
    assert said.out == "" and "Traceback" not in said.err and len(said.err.splitlines()[-1].split()) > 4, said.err
    assert {name: (folder / name).read_bytes() for name in os.listdir()} == before


@pytest.mark.parametrize("line", WRONG_LINES)
def test_a_line_that_is_not_understood(mapped, capsys, monkeypatch, line):
    check_refused(mapped, capsys, monkeypatch, line.split(), 2)


@pytest.mark.parametrize(
    ("command", "option", "value"),
    [
        *(("fit", option, value) for option, values in REFUSED.items() for value in values),
        *(("map", option, value) for option, values in OF_THE_MAP.items() for value in values),
        *(("plot", option, value) for option, value in (("--key", ""), ("--key", "gone"), ("--color", "gone"))),
    ],
)
def test_a_bad_value_is_refused_and_leaves_nothing(mapped, capsys, monkeypatch, command, option, value):
    given = {"--out": "out.png" if command == "plot" else "out.h5ad"}
    given |= {"map": {"--model": "model.safetensors"}, "fit": {"--use-rep": "X"}}.get(command, {})
    line = [f"{name}={text}" for name, text in {**given, option: value}.items()]
    check_refused(mapped, capsys, monkeypatch, [command, "cells.h5ad", "--quiet", *line], 1)


def test_force_replaces_files_and_folders(cells, monkeypatch):
    def fit(adata, **_):
        adata.obs["vcc"], adata.obs["vcc_confidence"] = adata.obs["truth"], 1.0

    monkeypatch.setattr(scvcc.tl, "vcc", fit)
    for out in ("out.h5ad", "out.zarr"):
        arguments = ["fit", "cells.h5ad", "--out", out]
        assert [cli.main(arguments), cli.main(arguments), cli.main([*arguments, "--force"])] == [0, 1, 0]
        assert (ad.read_h5ad if out.endswith("d") else ad.read_zarr)(out).n_obs == 240


def test_what_fails_while_writing_leaves_the_old_file(cells, monkeypatch):
    Path("out.h5ad").write_text("old")

    def fail(self, path):
        Path(path).write_text("half")
        raise OSError("disk full")

    monkeypatch.setattr(ad.AnnData, "write_h5ad", fail)
    monkeypatch.setattr(scvcc.tl, "vcc", lambda adata, **_: None)
    assert cli.main([*FIT, "--force"]) == 1
    assert Path("out.h5ad").read_text() == "old" and len(os.listdir()) == 2


def test_an_interrupt_has_its_own_code(cells, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(scvcc.tl, "vcc", interrupt)
    assert cli.main(FIT) == 130


def test_options_are_arguments_of_tl():
    for function, table in ((scvcc.tl.vcc, cli.FIT), (scvcc.tl.map_query, cli.MAP)):
        assert {name.replace("-", "_") for name in table} <= set(inspect.signature(function).parameters)


def test_help_and_wrong_lines(capsys):
    for arguments, code in ((["--help"], 0), (["fit", "--help"], 0), (["fit"], 2), (["nothing"], 2), ([], 2)):
        with pytest.raises(SystemExit) as stopped:
            cli.main(arguments)
        assert stopped.value.code == code
    assert "--n-clusters" in capsys.readouterr().out


def test_the_script_is_installed_under_its_name():
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    module, _, name = scripts["scvcc"].partition(":")
    assert getattr(import_module(module), name) is cli.main


def test_in_a_process_of_its_own(cells):
    """Quick help, the code of a failure, and no torch before it is needed."""
    script = (
        "import sys, scvcc.cli; code = scvcc.cli.main(sys.argv[1:]); sys.exit(code + 10 * ('torch' in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, "fit", "no.h5ad", "--out", "out.h5ad"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "scvcc fit: no.h5ad does not exist.\n"


def block(language: str) -> str:
    return re.search(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1]


@pytest.mark.slow
def test_the_snakemake_example_runs(blobs, tmp_path):
    """As printed on the page, where Snakemake is on the PATH or named by $SCVCC_SNAKEMAKE."""
    snakemake = os.environ.get("SCVCC_SNAKEMAKE") or shutil.which("snakemake")
    if snakemake is None:
        pytest.skip("Snakemake is not installed: name it by $SCVCC_SNAKEMAKE")
    (tmp_path / "Snakefile").write_text(block("python"))
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin" / "scvcc"
    script.write_text(f'#!/bin/sh\nPYTHONPATH="{ROOT}" exec "{sys.executable}" -m scvcc.cli "$@"\n')
    script.chmod(0o755)
    blobs[:140].copy().write_h5ad(tmp_path / "reference.h5ad")
    for name, part in (("a", blobs[140:190]), ("b", blobs[190:])):
        part.copy().write_h5ad(tmp_path / f"{name}.h5ad")
    path = f"{script.parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        [snakemake, "--cores", "1", "mapped/a.h5ad", "mapped/b.h5ad"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": path},
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert ad.read_h5ad(tmp_path / "mapped" / "a.h5ad").obs["vcc"].notna().all()
    assert json.loads((tmp_path / "mapped" / "b.json").read_text())["n_cells"] == 50
