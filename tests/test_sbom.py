"""The bill of materials has every package of the locks, and no other, and is what CycloneDX 1.6 says."""

import json
import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import pytest

from scripts.sbom import LOCKS, VENDORED, bill_of_materials

ROOT = Path(__file__).parent.parent

# The part of CycloneDX 1.6 that the bill uses: members, and what their values look like.
DOCUMENT: Final = {
    "$schema": r"http://cyclonedx\.org/schema/bom-1\.6\.schema\.json",
    "bomFormat": "CycloneDX",
    "specVersion": r"1\.6",
    "serialNumber": "urn:uuid:[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}",
    "version": "1",
}
COMPONENT: Final = {
    "type": "library",
    "bom-ref": ".+",
    "name": "[a-z0-9.-]+",
    "version": "[^ ]{1,1024}",
    "scope": "required|optional|excluded",
    "purl": r"pkg:(pypi/[a-z0-9-]+|npm/[a-z0-9.-]+)@[^@/ +]+",
}


def wrong(given: dict[str, Any], patterns: dict[str, str]) -> list[str]:
    return [name for name, pattern in patterns.items() if not re.fullmatch(pattern, str(given.get(name)))]


@pytest.fixture(scope="module")
def bill() -> dict[str, Any]:
    return bill_of_materials(ROOT)


def test_the_bill_is_what_cyclonedx_says(bill: dict[str, Any]) -> None:
    assert set(bill) == {*DOCUMENT, "metadata", "components"}
    assert wrong(bill, DOCUMENT) == []
    for component in bill["components"]:
        assert set(component) == {*COMPONENT, "hashes", "properties"}
        assert wrong(component, COMPONENT) == [], component["name"]
        assert [
            each for each in component["hashes"] if wrong(each, {"alg": "SHA-256", "content": "[0-9a-f]{64}"})
        ] == []
        assert all(set(each) == {"name", "value"} for each in component["properties"])
    own = bill["metadata"]["component"]
    assert wrong(own, {**COMPONENT, "type": "application", "scope": "None"}) == []
    references = [component["bom-ref"] for component in bill["components"]]
    assert len(references) == len(set(references)) > 100


@pytest.mark.parametrize("lock", LOCKS)
def test_the_bill_has_every_pinned_package_of_a_lock_with_its_hashes(bill: dict[str, Any], lock: str) -> None:
    text = (ROOT / "requirements" / f"{lock}.lock").read_text(encoding="utf-8")
    pinned = dict(re.findall(r"^([a-z0-9._-]+)(?:\[.*\])?==(\S+)", text, re.MULTILINE))
    found = {
        component["name"]: component
        for component in bill["components"]
        if {"name": "penstock:lock", "value": lock} in component["properties"]
    }
    assert {name: component["version"] for name, component in found.items()} == {
        name.replace(".", "-").replace("_", "-"): version for name, version in pinned.items()
    }
    assert sum(len(component["hashes"]) for component in found.values()) == text.count("--hash=sha256:")
    assert {each["content"] for component in found.values() for each in component["hashes"]} == set(
        re.findall(r"--hash=sha256:(\w+)", text)
    )


def test_the_bill_has_the_packages_whose_files_are_in_the_repository(bill: dict[str, Any]) -> None:
    folder = ROOT / VENDORED.parent
    found = {one["name"]: one for one in bill["components"] if one["purl"].startswith("pkg:npm/")}
    assert set(found) == {"htmx.org", "uplot"}
    digests = {sha256(path.read_bytes()).hexdigest() for path in folder.iterdir() if path.suffix in (".js", ".css")}
    assert {each["content"] for one in found.values() for each in one["hashes"]} == digests


def test_every_lock_is_in_the_bill() -> None:
    assert {path.stem for path in (ROOT / "requirements").glob("*.lock")} == set(LOCKS)


def test_what_runs_is_required_and_what_only_tests_is_excluded(bill: dict[str, Any]) -> None:
    scopes = {component["name"]: component["scope"] for component in bill["components"]}
    assert (scopes["apsw"], scopes["pytest"]) == ("required", "excluded")


def test_the_same_locks_give_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one.json", "two.json"):
        command = [sys.executable, str(ROOT / "scripts" / "sbom.py"), str(tmp_path / name)]
        said = subprocess.run(command, check=True, capture_output=True, text=True, cwd=tmp_path).stdout
        assert re.fullmatch(r".+\.json has \d+ packages\n", said)
    assert (tmp_path / "one.json").read_bytes() == (tmp_path / "two.json").read_bytes()
    assert json.loads((tmp_path / "one.json").read_bytes()) == bill_of_materials(ROOT)


def test_a_requirement_without_hashes_is_refused(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_bytes((ROOT / "pyproject.toml").read_bytes())
    (tmp_path / "requirements").mkdir()
    (tmp_path / "requirements" / "run.lock").write_text("apsw==3.54.1.0\n")
    with pytest.raises(SystemExit, match="not a pinned requirement"):
        bill_of_materials(tmp_path)
