"""The conventions of the package, as tests."""

import ast
import inspect
import re
import subprocess
import sys
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

import scvcc
from scvcc import metrics, pl, pp, tl

PACKAGE = Path(scvcc.__file__).parent
ROOT = PACKAGE.parent
MODULES = {"tl": tl, "pl": pl, "pp": pp, "metrics": metrics}
FUNCTIONS = {f"{name}.{f}": getattr(module, f) for name, module in MODULES.items() for f in module.__all__}
ON_ANNDATA = [name for name in FUNCTIONS if not name.startswith("metrics.")]
WRITERS = [name for name in FUNCTIONS if name.startswith(("tl.", "pp.")) and name != "tl.suggest_n_clusters"]

# floors from the ground up: imports point downward, within a floor they are acyclic
FLOORS = ["_clusters", "_training", "_model", "_anndata", "."]
RIM_ONLY = {"anndata", "scanpy", "pandas", "matplotlib", "natsort"}


def floor(path):
    folder = path.relative_to(PACKAGE).parts[0] if path.parent != PACKAGE else "."
    return FLOORS.index("." if folder in ("pl", "tl") else folder)


def imports(path):
    """Names that a file imports when it runs, wherever the import stands; imports for types alone are none."""
    tree = ast.parse(path.read_text())
    for_types = [n for n in ast.walk(tree) if isinstance(n, ast.If) and ast.unparse(n.test) == "TYPE_CHECKING"]
    skipped = {id(inner) for block in for_types for inner in ast.walk(block)}
    for node in (n for n in ast.walk(tree) if id(n) not in skipped):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            module = f"scvcc.{module}".rstrip(".") if node.level else module
            own = module.partition(".")[0] == "scvcc"
            yield from (f"{module}.{alias.name}" for alias in node.names) if own else [module]


FILES = sorted(PACKAGE.rglob("*.py"))
NAMES = {
    path: ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__") for path in FILES
}
BY_NAME = {name: path for path, name in NAMES.items()}


def own_imports(path):
    """Files of the package that a file imports."""
    for name in imports(path):
        while name.startswith("scvcc."):
            if name in BY_NAME:
                yield BY_NAME[name]
                break
            name = name.rpartition(".")[0]


@pytest.mark.parametrize("path", FILES, ids=NAMES.get)
def test_imports_point_downward(path):
    if path.parent == PACKAGE and path.stem == "__init__":
        return
    for other in own_imports(path):
        assert floor(other) <= floor(path), f"{NAMES[path]} imports {NAMES[other]}"


def test_imports_are_acyclic():
    TopologicalSorter({p: set(own_imports(p)) - {p} for p in FILES if p != PACKAGE / "__init__.py"}).prepare()


@pytest.mark.parametrize("path", [p for p in FILES if floor(p) < FLOORS.index("_anndata")], ids=NAMES.get)
def test_anndata_stays_at_the_rim(path):
    used = {name.partition(".")[0] for name in imports(path)}
    assert not used & RIM_ONLY


@pytest.mark.parametrize("path", FILES, ids=NAMES.get)
def test_no_private_name_of_scanpy(path):
    private = re.findall(r"\b(?:sc|scanpy|anndata|ad)(?:\.\w+)*\._(?!_)\w+", path.read_text())
    private += [n for n in imports(path) if n.startswith(("scanpy", "anndata")) and "._" in n]
    private += re.findall(r"from (?:scanpy|anndata)\S* import _\w+", path.read_text())
    assert not private


def test_import_is_lazy():
    program = "import sys, scvcc; print(sorted({'torch', 'scanpy', 'anndata', 'numba'} & set(sys.modules)))"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert output.stdout.strip() == "[]"


def test_preprocessing_needs_no_torch():
    program = "import sys, scvcc; scvcc.pp.lsa; print('torch' in sys.modules)"
    output = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT)
    assert output.stdout.strip() == "False"


@pytest.mark.parametrize("module", MODULES)
def test_dir_shows_what_users_call(module):
    assert dir(MODULES[module]) == sorted(MODULES[module].__all__)


@pytest.mark.parametrize("path", FILES, ids=NAMES.get)
def test_private_names_stay_in_their_module(path):
    """No name with a leading underscore is taken from another module of the package."""
    tree = ast.parse(path.read_text())
    own = {n.name for n in ast.walk(tree) if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    own |= {
        n.attr
        for n in ast.walk(tree)
        if isinstance(n, ast.Attribute) and isinstance(n.value, ast.Name) and n.value.id in ("self", "cls")
    }
    foreign = [n.attr for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr not in own]
    foreign += [
        a.name for n in ast.walk(tree) if isinstance(n, ast.ImportFrom) and (n.module or "").count(".") for a in n.names
    ]
    assert [name for name in foreign if name.startswith("_") and not name.startswith("__")] == []


def test_public_names():
    assert set(scvcc.__all__) == {"VCC", "metrics", "pl", "pp", "tl"}
    assert set(dir(scvcc)) == {"__version__", *scvcc.__all__}
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = scvcc.nothing


@pytest.mark.parametrize("module", MODULES)
def test_all_lists_what_is_public(module):
    defined = {
        name
        for name, value in vars(MODULES[module]).items()
        if inspect.isfunction(value)
        and f"{value.__module__}.".startswith(f"scvcc.{module}.")
        and not name.startswith("_")
    }
    assert set(MODULES[module].__all__) == defined


@pytest.mark.parametrize("name", FUNCTIONS)
def test_few_positional_arguments(name):
    parameters = inspect.signature(FUNCTIONS[name]).parameters.values()
    positional = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    assert 1 <= len(positional) <= 3
    if name in ON_ANNDATA:
        assert positional[0] == "adata"


@pytest.mark.parametrize("name", WRITERS)
def test_writers_have_copy_and_return_a_copy_or_nothing(name):
    signature = inspect.signature(FUNCTIONS[name])
    copy = signature.parameters["copy"]
    assert copy.kind is copy.KEYWORD_ONLY and copy.default is False
    assert signature.return_annotation == "AnnData | None"
    assert {"key_added", "key"} & set(signature.parameters)


@pytest.mark.parametrize("name", [n for n in FUNCTIONS if n.startswith("pl.")])
def test_plots_share_their_last_arguments(name):
    parameters = inspect.signature(FUNCTIONS[name]).parameters
    for argument, default in (("show", None), ("return_fig", False), ("key", "vcc")):
        assert parameters[argument].kind is parameters[argument].KEYWORD_ONLY
        assert parameters[argument].default == default


@pytest.mark.parametrize("name", FUNCTIONS)
def test_seeds_default_to_zero(name):
    seed = inspect.signature(FUNCTIONS[name]).parameters.get("random_state")
    assert seed is None or seed.default == 0


def documented(function):
    """Names in the Parameters section of a numpydoc docstring."""
    text = inspect.getdoc(function)
    section = re.search(r"\nParameters\n-+\n(.*?)(?:\n\n\w+\n-+\n|\Z)", text, re.DOTALL).group(1)
    return re.findall(r"^(\*{0,2}\w+)$", section, re.MULTILINE)


def accepted(function):
    parameters = inspect.signature(function).parameters.values()
    return [{p.VAR_KEYWORD: "**", p.VAR_POSITIONAL: "*"}.get(p.kind, "") + p.name for p in parameters]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_docstring_names_the_parameters_in_order(name):
    names = documented(FUNCTIONS[name])
    shown = set(accepted(scvcc.VCC)) - set(names) if "**kwargs" in names else set()  # described with the estimator
    assert [n for n in names if n != "**kwargs"] == [n for n in accepted(FUNCTIONS[name]) if n not in shown]


def test_docstring_of_the_estimator_names_its_parameters():
    assert documented(scvcc.VCC) == accepted(scvcc.VCC)


def own_methods(estimator):
    """Public methods that the class itself defines, by name; properties are described with the attributes."""
    values = {name: inspect.getattr_static(estimator, name) for name in vars(estimator) if not name.startswith("_")}
    return {
        name: getattr(estimator, name)
        for name, v in values.items()
        if inspect.isfunction(v) or isinstance(v, classmethod)
    }


METHODS = {f"VCC.{name}": method for name, method in own_methods(scvcc.VCC).items()}


def test_methods_of_the_estimator_are_found():
    assert {"VCC.fit", "VCC.predict", "VCC.load", "VCC.save", "VCC.fit_transform"} <= set(METHODS)


@pytest.mark.parametrize("name", [*FUNCTIONS, *METHODS])
def test_docstrings_are_complete(name):
    text = inspect.getdoc({**FUNCTIONS, **METHODS}[name])
    assert "\nReturns\n-------\n" in text or name == "VCC.save"
    assert "\nExamples\n--------\n" in text and ">>> " in text


@pytest.mark.parametrize("name", METHODS)
def test_docstrings_of_methods_name_the_parameters_in_order(name):
    assert documented(METHODS[name]) == [argument for argument in accepted(METHODS[name]) if argument != "self"]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_everything_is_annotated(name):
    signature = inspect.signature(FUNCTIONS[name])
    assert signature.return_annotation is not signature.empty
    assert all(p.annotation is not p.empty for p in signature.parameters.values())


@pytest.mark.parametrize("name", [*FUNCTIONS, "VCC"])
def test_every_public_name_is_in_the_api_pages(name):
    pages = [ROOT / "docs" / "api.md", *(ROOT / "docs" / "api").glob("*.md")]
    text = "\n".join(page.read_text() for page in pages if page.exists())
    assert re.search(rf"^\s*{re.escape(name)}\s*$", text, re.MULTILINE), f"{name} is not listed in docs/api"


def test_what_tl_writes_is_in_its_docstring(clustered, _neighbors):
    text = inspect.getdoc(tl.vcc)
    for field in ("obs[key_added]", 'obs[key_added + "_confidence"]'):
        assert f"`adata.{field}`" in text
    for field in ('obsm["X_" + key_added]', "uns[key_added]", 'obsm["X_pca"]', 'obsp["distances"]'):
        assert f"`adata.{field}`" in text


@pytest.mark.parametrize("path", FILES, ids=NAMES.get)
def test_functions_are_short(path):
    """At most 50 lines, docstring and signature aside."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) else node.body
            length = body[-1].end_lineno - body[0].lineno + 1 if body else 0
            assert length <= 50, f"{path.stem}.{node.name} has {length} lines"


@pytest.mark.slow
def test_readme_runs_as_printed(tmp_path, monkeypatch):
    """Its Python blocks in order, in one namespace."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    names: dict = {}
    for block in blocks:
        exec(block, names)
    assert names["new_cells"].obs["vcc"].notna().all()
    assert (tmp_path / "blood.safetensors").exists()
