from importlib import import_module

import numba
import pytest

from scvcc._clusters.compiled import compiled

SOURCE = "def twice(x):\n    return 2 * x\n"


def defined_in(path):
    names = {}
    exec(compile(SOURCE, str(path), "exec"), names)
    return names["twice"]


def test_machine_code_is_kept_where_a_folder_can_be_written_to(tmp_path, monkeypatch):
    (tmp_path / "written.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(tmp_path)
    assert compiled()(import_module("written").twice)(3) == 6
    assert list((tmp_path / "__pycache__").glob("written.twice*.nbc"))


def test_functions_run_where_nothing_can_be_written(monkeypatch):
    nowhere = "/dev/null/package/module.py"  # no folder can be made below a file, not even by root
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, "/dev/null/home")
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    with pytest.raises(RuntimeError, match="no locator"):
        numba.njit(cache=True)(defined_in(nowhere))
    assert compiled(fastmath=True)(defined_in(nowhere))(3) == 6
