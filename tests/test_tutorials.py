"""The stored notebooks: executed from top to bottom, without errors, warnings or traces of a machine."""

import ast
import json
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent.parent / "tutorials"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
MACHINE = re.compile(r"/home/|/root/|/tmp/|/Users/|[A-Z]:\\\\Users|site-packages|\d\d:\d\d:\d\d")


@pytest.fixture(params=NOTEBOOKS, ids=lambda path: path.stem)
def notebook(request):
    return json.loads(request.param.read_text(encoding="utf-8"))


def code(notebook):
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def outputs(notebook):
    return [output for cell in code(notebook) for output in cell["outputs"]]


def test_all_tutorials_are_there():
    assert [path.stem[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05", "06", "07", "08"]


def test_cells_ran_once_in_order(notebook):
    counts = [cell["execution_count"] for cell in code(notebook)]
    assert counts == list(range(1, len(counts) + 1))


def test_outputs_have_no_error_and_no_warning(notebook):
    assert {output["output_type"] for output in outputs(notebook)} <= {"display_data", "execute_result", "stream"}
    assert not [output for output in outputs(notebook) if output.get("name") == "stderr"]


def test_outputs_show_something(notebook):
    assert sum("image/png" in output.get("data", {}) for output in outputs(notebook)) >= 1


def test_outputs_tell_nothing_of_the_machine(notebook):
    texts = json.dumps(
        [
            output.get("text", {name: text for name, text in output.get("data", {}).items() if name.startswith("text")})
            for output in outputs(notebook)
        ]
    )
    assert not MACHINE.findall(texts)
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    assert all(set(cell["metadata"]) <= {"quick"} for cell in notebook["cells"])


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_size(path):
    assert path.stat().st_size < 1_000_000


def test_starts_with_a_title_and_a_question(notebook):
    text = "".join(notebook["cells"][0]["source"])
    assert re.match(r"# \S.*\n\n\*.*\?\*", text)


def test_nothing_is_downloaded(notebook):
    called = set(
        re.findall(r"\b(?:datasets\.\w+|load_\w+|fetch_\w+)", "\n".join("".join(c["source"]) for c in code(notebook)))
    )
    assert called <= {"datasets.pbmc68k_reduced", "load_digits", "load_iris"}


def test_quick_forms_replace_one_assignment(notebook):
    for cell in code(notebook):
        if "quick" in cell["metadata"]:
            quick, full = ast.parse(cell["metadata"]["quick"]).body, ast.parse("".join(cell["source"])).body
            assert [ast.unparse(node.targets[0]) for node in quick] == [ast.unparse(node.targets[0]) for node in full]
