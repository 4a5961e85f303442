"""Binder, Codespaces and the workflows: files for other people's machines, as far as they can be tried on this one."""

import json
import os
import re
import subprocess

import pytest
import yaml


@pytest.fixture(params=["check", "publish"])
def workflow(root, request):
    return yaml.safe_load((root / ".github" / "workflows" / f"{request.param}.yml").read_text(encoding="utf-8"))


def test_a_workflow_runs_commands_that_there_are(root, workflow):
    (job,) = workflow["jobs"].values()
    targets = re.findall(r"^([a-z-]+):", (root / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands
    assert all(command.removeprefix("make ") in targets for command in commands)


def test_a_workflow_may_do_no_more_than_it_has_to(workflow):
    (name,) = workflow["jobs"]
    more = {"pages": "write", "id-token": "write"} if name == "publish" else {}
    assert workflow["permissions"] == {"contents": "read", **more}


def test_codespaces_makes_the_environment_that_it_opens(root):
    about = json.loads((root / ".devcontainer" / "devcontainer.json").read_text(encoding="utf-8"))
    assert about["postCreateCommand"] == "make environment"
    assert about["remoteEnv"]["PATH"].startswith("${containerWorkspaceFolder}/.venv/bin:")
    assert all((root / path).is_file() for path in about["customizations"]["codespaces"]["openFiles"])


def test_binder_takes_the_versions_of_the_lock(root):
    build, start = (root / ".binder" / name for name in ("postBuild", "start"))
    for script in (build, start):
        assert os.access(script, os.X_OK)
        subprocess.run(["bash", "-n", script], check=True)
    assert "--no-deps --require-hashes -r requirements.lock" in build.read_text()
    told = subprocess.run(
        ["bash", start, "printenv", "MINITRANSFORMER_BACKEND"], capture_output=True, text=True, check=True
    )
    assert told.stdout.split() == [os.environ.get("MINITRANSFORMER_BACKEND") or "numpy"]


def test_the_sites_packages_are_pinned_by_hash(root):
    wanted = re.findall(
        r"^([\w.-]+)[><=]", (root / "site" / "requirements.in").read_text(encoding="utf-8"), re.MULTILINE
    )
    text = (root / "site" / "requirements.txt").read_text(encoding="utf-8")
    pinned = re.findall(r"^([\w.-]+)==", text, re.MULTILINE)
    assert set(wanted) <= set(pinned)
    entries = re.split(r"\n(?=\S)", text.strip())
    assert len(entries) == len(pinned)
    assert all("--hash=sha256:" in entry for entry in entries)
