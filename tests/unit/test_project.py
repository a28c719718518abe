"""The rules of the project are checked, and the checks see what they are there for."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, requires
from pathlib import Path

import grimp
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
CONTRACTS = [contract["name"] for contract in PROJECT["tool"]["importlinter"]["contracts"]]
LAYERS, PURE, SQL, TORCH, WHATIF = CONTRACTS


def lint_imports(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the import rules over the tree in `folder`; contract names come back on one line each."""
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=folder,
        env={"COLUMNS": "500", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def stray_imports(graph: grimp.ImportGraph) -> set[str]:
    """Imports of the shim that the patterns of import-linter cannot express, as `importer -> imported`."""
    strays = set()
    for importer in graph.find_descendants("opus_sdn.shim"):
        backend = importer.split(".")[2].startswith(("torch_", "autoload"))  # torch itself calls autoload
        for imported in graph.find_modules_directly_imported_by(importer):
            core = imported.startswith("opus_sdn.intent.")
            if core and imported not in ("opus_sdn.intent.model", "opus_sdn.intent.errors"):
                strays.add(f"{importer} -> {imported}")
            if imported == "torch" and not backend:
                strays.add(f"{importer} -> {imported}")
    return strays


def test_the_tree_keeps_its_import_rules() -> None:
    checked = lint_imports(ROOT)
    assert checked.returncode == 0, checked.stdout
    assert [f"{name} KEPT" in checked.stdout for name in CONTRACTS] == [True] * 5


@pytest.fixture(scope="module")
def broken_rules(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What the import rules say of a copy of the tree into which every forbidden import was planted."""
    copy = tmp_path_factory.mktemp("planted")
    shutil.copy(ROOT / "pyproject.toml", copy)
    shutil.copytree(ROOT / "opus_sdn", copy / "opus_sdn", ignore=shutil.ignore_patterns("__pycache__"))
    for number, (importer, imported, _) in enumerate(PLANTED):
        folder = copy.joinpath(*importer.split("."))
        folder.mkdir(exist_ok=True)
        folder.joinpath("__init__.py").touch()
        folder.joinpath(f"planted{number}.py").write_text(f"import {imported}\n", encoding="utf-8")
    checked = lint_imports(copy)
    assert checked.returncode == 1
    return checked.stdout


PLANTED = [
    ("opus_sdn.intent", "opus_sdn.store", LAYERS),
    ("opus_sdn.intent", "opus_sdn.settings", LAYERS),
    ("opus_sdn.fabric_file", "opus_sdn.drivers", LAYERS),
    ("opus_sdn.fabric_file", "opus_sdn.settings", LAYERS),
    ("opus_sdn.store", "opus_sdn.reconciler", LAYERS),
    ("opus_sdn.store", "opus_sdn.drivers", LAYERS),
    ("opus_sdn.drivers", "opus_sdn.store", LAYERS),
    ("opus_sdn.drivers", "opus_sdn.api", LAYERS),
    ("opus_sdn.reconciler", "opus_sdn.api", LAYERS),
    ("opus_sdn.api", "opus_sdn.demo", LAYERS),
    ("opus_sdn.shim", "opus_sdn.store", LAYERS),
    ("opus_sdn.shim", "opus_sdn.api", LAYERS),
    ("opus_sdn.shim", "opus_sdn.demo", LAYERS),
    ("opus_sdn.whatif", "opus_sdn.api", LAYERS),
    ("opus_sdn.intent", "opus_sdn.whatif", LAYERS),
    ("opus_sdn.reconciler", "opus_sdn.whatif", LAYERS),
    ("opus_sdn.whatif", "opus_sdn.store", WHATIF),
    ("opus_sdn.whatif", "opus_sdn.reconciler", WHATIF),
    ("opus_sdn.whatif", "fastapi", WHATIF),
    ("opus_sdn.whatif", "torch", WHATIF),
    ("opus_sdn.intent", "time", PURE),
    ("opus_sdn.intent", "datetime", PURE),
    ("opus_sdn.intent", "random", PURE),
    ("opus_sdn.intent", "os", PURE),
    ("opus_sdn.intent", "asyncio", PURE),
    ("opus_sdn.intent", "logging", PURE),
    ("opus_sdn.intent", "pydantic", PURE),
    ("opus_sdn.intent", "sqlite3", SQL),
    ("opus_sdn.reconciler", "sqlmodel", SQL),
    ("opus_sdn.api", "sqlalchemy", SQL),
    ("opus_sdn.api", "torch", TORCH),
    ("opus_sdn.reconciler", "torch", TORCH),
]


@pytest.mark.parametrize("number", range(len(PLANTED)), ids=[f"{a}-imports-{b}" for a, b, _ in PLANTED])
def test_an_import_against_the_layers_is_caught(broken_rules: str, number: int) -> None:
    importer, imported, contract = PLANTED[number]
    assert f"{contract} BROKEN" in broken_rules
    _, _, details = broken_rules.partition("Broken contracts")
    section = details.split(f"{contract}\n", 1)[1]
    following = re.search(r"\n(?:" + "|".join(re.escape(name) for name in CONTRACTS) + r")\n-+\n", section)
    section = section[: following.start()] if following else section
    assert f"{importer}.planted{number} -> {imported} " in section


def test_the_shim_imports_no_more_of_the_core_than_values_and_errors_and_torch_in_its_backend_only() -> None:
    graph = grimp.build_graph("opus_sdn", include_external_packages=True, cache_dir=None)
    assert stray_imports(graph) == set()


def test_what_runs_without_torch_does_not_load_it() -> None:
    modules = [
        f"opus_sdn.{module.relative_to(ROOT / 'opus_sdn').with_suffix('').as_posix().replace('/', '.')}"
        for module in sorted((ROOT / "opus_sdn").rglob("*.py"))
        if not module.name.startswith(("torch_", "__")) and "demo" not in module.parts
    ]
    assert "opus_sdn.shim.session" in modules
    program = f"import sys, {', '.join(modules)}\nprint('torch' in sys.modules)"
    ran = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120
    )
    assert (ran.stdout.strip(), ran.stderr) == ("False", "")


def test_stray_imports_of_the_shim_are_seen() -> None:
    graph = grimp.ImportGraph()
    for module in ("opus_sdn", "opus_sdn.shim", "torch"):
        graph.add_module(module)
    for importer, imported in [
        ("opus_sdn.shim.torch_backend", "torch"),
        ("opus_sdn.shim.torch_backend", "opus_sdn.intent.planner"),
        ("opus_sdn.shim.client", "torch"),
        ("opus_sdn.shim.client", "opus_sdn.intent.model"),
    ]:
        graph.add_import(importer=importer, imported=imported)
    assert stray_imports(graph) == {
        "opus_sdn.shim.client -> torch",
        "opus_sdn.shim.torch_backend -> opus_sdn.intent.planner",
    }


def everything_pulled_by(requirements: list[str]) -> set[str]:
    """The names of all packages that an installer would bring, as far as they are installed here."""
    found: set[str] = set()
    waiting = [Requirement(text) for text in requirements]
    while waiting:
        requirement = waiting.pop()
        name = canonicalize_name(requirement.name)
        if name in found:
            continue
        found.add(name)
        try:
            needs = [Requirement(text) for text in requires(name) or []]
        except PackageNotFoundError:
            continue
        extras = requirement.extras or {""}
        waiting += [n for n in needs if not n.marker or any(n.marker.evaluate({"extra": e}) for e in extras)]
    return found


def test_no_way_of_installing_the_package_brings_a_torch_of_its_own() -> None:
    project = PROJECT["project"]
    extras = project["optional-dependencies"].values()
    offered = [*project["dependencies"], *(text for extra in extras for text in extra)]
    pulled = everything_pulled_by(offered)
    assert "starlette" in pulled  # by way of fastapi: the walk goes deeper than the first step
    assert "torch" not in pulled


def test_the_extras_and_entry_points_that_the_documents_promise_exist() -> None:
    project = PROJECT["project"]
    assert set(project["optional-dependencies"]) == {"shim", "whatif", "dask", "postgres", "dev"}
    assert project["scripts"] == {"opus": "opus_sdn.cli:main", "opus-agent": "opus_sdn.cli:agent"}
    assert project["entry-points"]["torch.backends"] == {"opus_sdn": "opus_sdn.shim.autoload:register"}


def test_every_target_that_make_announces_does_something() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    announced = set(" ".join(re.findall(r"^\.PHONY:(.*)$", makefile, re.MULTILINE)).split())
    with_recipe = set(re.findall(r"^([a-z-]+):[^\n]*\n\t\S", makefile, re.MULTILINE))
    assert announced - with_recipe == {"install"}  # its prerequisite does the work
    promised = {
        name
        for page in (ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md"))
        for name in re.findall(r"`make ([a-z][a-z-]*)", page.read_text(encoding="utf-8"))
    }
    assert promised <= announced
