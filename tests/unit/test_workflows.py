"""The workflows on the forge: pinned actions, few rights, and the promised Pythons."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
_PINNED = re.compile(r"\s*(?:- )?uses: ([\w.-]+/[\w./-]+)@([0-9a-f]{40}) # v\d+\.\d+\.\d+")


def _read(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text("utf-8"))


def _steps(workflow: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for job in workflow["jobs"].values():
        yield from job["steps"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_action_is_pinned_by_its_commit_and_says_its_version(path: Path) -> None:
    lines = [line for line in path.read_text("utf-8").splitlines() if "uses:" in line]
    found = [match.group(1, 2) for line in lines if (match := _PINNED.fullmatch(line))]
    assert len(found) == len(lines) > 0
    assert [f"{name}@{sha}" for name, sha in found] == [
        step["uses"] for step in _steps(_read(path)) if "uses" in step
    ]


def test_an_action_has_one_commit_in_all_workflows() -> None:
    used = {step["uses"] for path in WORKFLOWS for step in _steps(_read(path)) if "uses" in step}
    assert len({name.partition("@")[0] for name in used}) == len(used)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_a_job_has_a_time_limit_few_rights_and_leaves_no_credentials_behind(path: Path) -> None:
    workflow = _read(path)
    assert workflow["permissions"] in ({}, {"contents": "read"})
    for job in workflow["jobs"].values():
        assert job["timeout-minutes"] <= 180
        for step in job["steps"]:
            if step.get("uses", "").startswith("actions/checkout@"):
                assert step["with"]["persist-credentials"] is False
            # What strangers choose, such as the name of a branch, is never put into a command.
            assert "${{" not in step.get("run", "")


def test_only_the_job_that_publishes_may_ask_for_a_token_and_it_runs_none_of_our_code() -> None:
    release = _read(ROOT / ".github" / "workflows" / "release.yml")
    assert release[True] == {"push": {"tags": ["v*"]}}  # `on` is a truth value to YAML
    rights = {name: job["permissions"] for name, job in release["jobs"].items()}
    assert rights == {
        "build": {"contents": "read"},
        "publish": {"id-token": "write"},
        "announce": {"contents": "write"},
    }
    publish = release["jobs"]["publish"]
    assert publish["environment"]["name"] == "pypi"
    assert publish["needs"] == "build"
    download, upload = publish["steps"]
    assert upload.keys() == {
        "uses"
    }  # attestations and the right address are what the action does when told nothing
    assert upload["uses"].startswith("pypa/gh-action-pypi-publish@")
    assert download["with"] == {"name": "dist", "path": "dist"}
    for path in WORKFLOWS:
        if path.stem != "release":
            assert all("permissions" not in job for job in _read(path)["jobs"].values())


def test_the_tag_is_held_against_the_version_before_anything_is_kept() -> None:
    steps = _read(ROOT / ".github" / "workflows" / "release.yml")["jobs"]["build"]["steps"]
    (check,) = [step for step in steps if step.get("run") == "make release-check"]
    assert check["env"] == {"RELEASE_TAG": "${{ github.ref_name }}", "RELEASE_OUT": "dist"}
    recipe = (ROOT / "Makefile").read_text("utf-8").partition("release-check: ##")[2].partition("\n\n")[0]
    assert '$${RELEASE_TAG:+--tag "$$RELEASE_TAG"} $${RELEASE_OUT:+--out "$$RELEASE_OUT"}' in recipe


def test_the_pythons_that_are_tried_are_those_that_the_package_names() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    named = re.findall(r"Programming Language :: Python :: (3\.\d+)", "\n".join(project["classifiers"]))
    ci = _read(ROOT / ".github" / "workflows" / "ci.yml")
    assert ci["jobs"]["test"]["strategy"]["matrix"]["python"] == named
    assert project["requires-python"] == f">={named[0]}"
    # The next one is tried, and holds up nobody.
    following = ci["jobs"]["test-next"]
    assert following["continue-on-error"] is True
    (python,) = [
        step["with"]["python-version"]
        for step in following["steps"]
        if "python-version" in step.get("with", {})
    ]
    assert python == f"3.{int(named[-1].partition('.')[2]) + 1}"


def test_every_command_of_a_workflow_is_a_target_of_the_makefile_or_a_script() -> None:
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)
    for path in WORKFLOWS:
        for step in _steps(_read(path)):
            for name in re.findall(r"^make ([a-z-]+)", step.get("run", "")):
                assert name in targets
            if step.get("run", "").startswith("."):
                assert (ROOT / step["run"]).is_file()


def test_a_first_run_installs_no_tool_of_developers_and_the_checks_install_them(tmp_path: Path) -> None:
    """Both with the versions that are tested; nothing is installed twice."""
    clone = tmp_path / "clone"
    clone.mkdir()
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        (clone / name).write_bytes((ROOT / name).read_bytes())
    version = clone / "gloader" / "core" / "version.py"
    version.parent.mkdir(parents=True)
    version.touch()

    def installs(target: str) -> list[str]:
        done = subprocess.run(
            ["make", "-n", target], cwd=clone, capture_output=True, text=True, check=True, timeout=60
        )
        return re.findall(r"-m pip install .* -e '(\S+)' -c constraints\.txt", done.stdout)

    assert installs("train") == ["."]
    assert installs("setup") == [".", ".[dev]"]
    for stamp in (".gloader-run", ".gloader-setup"):
        (clone / ".venv").mkdir(exist_ok=True)
        (clone / ".venv" / stamp).touch()
        assert installs("train") == []
    assert installs("setup") == []
    assert re.search(r"^test: setup ", (ROOT / "Makefile").read_text("utf-8"), re.MULTILINE)


def test_updates_of_actions_and_of_every_list_of_versions_are_asked_for() -> None:
    updates = _read(ROOT / ".github" / "dependabot.yml")["updates"]
    found = {each["package-ecosystem"]: each.get("directories", [each.get("directory")]) for each in updates}
    assert found == {"github-actions": ["/"], "pip": ["/", "/tests"]}
    assert all(each["groups"] for each in updates)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_a_form_has_what_the_forge_asks_of_forms(path: Path) -> None:
    form = _read(path)
    assert {"name", "description", "body"} <= form.keys()
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert len({field["id"] for field in fields}) == len(fields) > 0
    for field in form["body"]:
        assert field["type"] in {"markdown", "textarea", "input", "dropdown", "checkboxes"}
        assert "value" in field["attributes"] if field["type"] == "markdown" else field["attributes"]["label"]


def test_the_citation_is_of_this_package() -> None:
    """By the rules of the schema of version 1.2.0: these members, and no other are used."""
    citation = _read(ROOT / "CITATION.cff")
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    assert citation.keys() >= {"cff-version", "message", "title", "authors"}
    assert citation.keys() <= {
        *("cff-version", "message", "title", "authors", "type", "abstract", "keywords", "license"),
        *("repository-code", "url"),
    }
    assert (citation["cff-version"], citation["type"]) == ("1.2.0", "software")
    assert (citation["license"], citation["keywords"]) == (project["license"], project["keywords"])
    assert citation["repository-code"] == project["urls"]["Source"]
    assert [author["name"] for author in citation["authors"]] == [each["name"] for each in project["authors"]]
