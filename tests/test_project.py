"""The files around the package agree with each other, and with the schemas of those who read them."""

import re
import tomllib
from itertools import chain
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
# the scverse registry's schema 2.0 of 2026, with the vocabulary of its README; only the terms that fit a package like ours
REQUIRED = {
    "name": str,
    "description": str,
    "project_home": str,
    "documentation_home": str,
    "install": dict,
    "primary_category": str,
    "tags": list,
    "license": str,
    "language": str,
    "contact": list,
    "category": str,
}
CATEGORIES = {"Data structures", "scRNA-seq", "Multimodal", "Infrastructure"}
TAGS = {
    "benchmarking",
    "cell-type annotation",
    "clustering",
    "data integration",
    "deep learning",
    "dimensionality reduction",
    "GPU acceleration",
    "scRNA-seq",
    "visualization",
}


@pytest.fixture
def entry() -> dict:
    return yaml.safe_load((ROOT / "docs" / "registry" / "meta.yaml").read_text(encoding="utf-8"))


def test_the_registry_entry_is_complete(entry):
    assert {name for name, kind in REQUIRED.items() if not (isinstance(entry.get(name), kind) and entry[name])} == set()
    assert set(entry) <= {*REQUIRED, "tutorials_home", "test_command"}
    assert all(entry[name].startswith("https://") for name in entry if name.endswith("_home"))


def test_the_registry_entry_uses_its_vocabulary(entry):
    assert entry["category"] == "ecosystem"
    assert entry["primary_category"] in CATEGORIES
    assert set(entry["tags"]) <= TAGS
    assert len(set(entry["tags"])) == len(entry["tags"])


def test_the_registry_entry_agrees_with_the_project(entry):
    project = PROJECT["project"]
    assert entry["name"] == entry["install"]["pypi"] == project["name"]
    assert entry["license"] == project["license"]
    assert entry["project_home"] == project["urls"]["Source"]
    assert entry["documentation_home"] == project["urls"]["Documentation"]


def lower_bounds() -> dict[str, str]:
    extras = PROJECT["project"]["optional-dependencies"].values()
    lines = [*PROJECT["project"]["dependencies"], *chain(*extras), *PROJECT["dependency-groups"]["test"]]
    bounds = {}
    for requirement in map(Requirement, lines):
        (bounds[requirement.name],) = [s.version for s in requirement.specifier if s.operator == ">="]
    return bounds


def test_the_oldest_versions_are_the_lower_bounds():
    lines = (ROOT / "constraints-oldest.txt").read_text(encoding="utf-8").splitlines()
    pins = dict(line.split("==") for line in lines if not line.startswith("#"))
    assert list(pins) == sorted(pins)
    bounds = lower_bounds()
    assert pins.keys() == bounds.keys()
    for name, bound in bounds.items():  # >=2.4 allows 2.4.0
        assert re.fullmatch(rf"{re.escape(bound)}(\.0)*", pins[name]), f"{name}: pyproject {bound}, pin {pins[name]}"


def test_every_python_of_the_classifiers_is_tested():
    found = [re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", c) for c in PROJECT["project"]["classifiers"]]
    named = [match[1] for match in found if match]
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yaml").read_text(encoding="utf-8"))
    matrix = workflow["jobs"]["newest"]["strategy"]["matrix"]["python"]
    assert set(named) <= set(matrix)
    assert PROJECT["project"]["requires-python"] == f">={named[0]}"


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yaml"))


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned(path):
    used = re.findall(r"uses: (\S+)(.*)", path.read_text(encoding="utf-8"))
    assert used
    for action, version in used:
        assert re.search(r"@[0-9a-f]{40}$", action), action
        assert re.fullmatch(r" # v[\d.]+", version), f"{action} does not name its version"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_may_read_and_no_more(path):
    """But for the identity with which a release is uploaded."""
    text = path.read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    more = {name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job}
    assert more == ({"publish": {"id-token": "write"}} if path.stem == "release" else {})
    assert "secrets." not in text and "pull_request_target" not in text
    checkouts = [s for job in workflow["jobs"].values() for s in job["steps"] if "checkout" in s.get("uses", "")]
    assert all(step["with"]["persist-credentials"] is False for step in checkouts)


def test_one_job_waits_for_all_others():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "test.yaml").read_text(encoding="utf-8"))["jobs"]
    assert set(jobs.pop("all-green")["needs"]) == set(jobs)


def test_the_picture_of_the_house_shows_every_module():
    page = (ROOT / "docs" / "contributing.md").read_text(encoding="utf-8")
    floors = re.split(r"\n (?=what users call|_\w+/)", page.split("```text\n")[1].split("```")[0])
    shown = {text.split("/")[0]: set(re.findall(r"\w+", text)) for text in floors}
    for floor in ("_anndata", "_model", "_training", "_clusters"):
        modules = {path.stem for path in (ROOT / "scvcc" / floor).glob("*.py")} - {"__init__"}
        assert modules <= shown[floor], f"name {modules - shown[floor]} in the picture of docs/contributing.md"
