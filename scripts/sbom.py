"""Makes the software bill of materials as CycloneDX 1.6: every package of the locks, and those with files in this
repository.

`make sbom` writes it to build/sbom.json. The same sources always give the same bytes, and the network is not needed.
"""

import json
import re
import sys
import tomllib
from pathlib import Path
from typing import Any, Final
from uuid import NAMESPACE_URL, uuid5

LOCKS: Final = {
    "run": ("required", "`make run`, and an installation"),
    "postgres": ("optional", "the driver for PostgreSQL"),
    "dev": ("excluded", "tests and checks"),
    "site": ("excluded", "the website of the docs"),
    "peers": ("excluded", "benchmarks against other systems"),
}
"""Locks, the most important first: the scope of a package in the first one that has it."""
REQUIREMENT: Final = re.compile(
    r"([A-Za-z0-9._-]+)(?:\[[^]]*\])?==(\S+)(?: ; (.+?))?((?: +--hash=sha256:[0-9a-f]{64})+)"
)

VENDORED: Final = Path("src/penstock/console/static/vendor/README.md")
VENDORED_ROW: Final = re.compile(r"^\| `[^`]+` \| `([^`]+)` \| ([0-9.]+) \|.*`([0-9a-f]{64})` \|$", re.MULTILINE)


def requirements(lock: Path) -> list[tuple[str, str, str | None, list[str]]]:
    """Name, version, marker and SHA-256 digests of each requirement of a lock."""
    lines = lock.read_text(encoding="utf-8").replace("\\\n", " ").splitlines()
    found = []
    for line in lines:
        if line.strip() and not line.lstrip().startswith("#"):
            if (requirement := REQUIREMENT.fullmatch(" ".join(line.split()))) is None:
                raise SystemExit(f"{lock}: not a pinned requirement with hashes: {line[:80]}")
            name, version, marker, hashes = requirement.groups()
            digests = sorted(each.rpartition(":")[2] for each in hashes.split())
            found.append((re.sub(r"[-_.]+", "-", name).lower(), version, marker, digests))
    return found


def vendored(root: Path) -> list[tuple[str, str, list[str]]]:
    """Name, version and the SHA-256 digests of the files of each package whose files are in the repository."""
    rows = VENDORED_ROW.findall((root / VENDORED).read_text(encoding="utf-8"))
    packages = sorted({(name, version) for name, version, _ in rows})
    return [(*package, [digest for *of, digest in rows if tuple(of) == package]) for package in packages]


def bill_of_materials(root: Path) -> dict[str, Any]:
    """The document, from the locks and pyproject.toml of a repository."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    components: dict[str, dict[str, Any]] = {}
    for lock, (scope, _) in LOCKS.items():
        for name, version, marker, digests in requirements(root / "requirements" / f"{lock}.lock"):
            reference = purl(name, version)
            component = components.setdefault(
                reference,
                {
                    "type": "library",
                    "bom-ref": reference,
                    "name": name,
                    "version": version,
                    "scope": scope,
                    "hashes": [{"alg": "SHA-256", "content": digest} for digest in digests],
                    "purl": reference,
                    "properties": [{"name": "penstock:marker", "value": marker}] if marker else [],
                },
            )
            component["properties"].append({"name": "penstock:lock", "value": lock})
    for name, version, digests in vendored(root):
        reference = f"pkg:npm/{name}@{version}"
        components[reference] = {
            "type": "library",
            "bom-ref": reference,
            "name": name,
            "version": version,
            "scope": "required",
            "hashes": [{"alg": "SHA-256", "content": digest} for digest in digests],
            "purl": reference,
            "properties": [{"name": "penstock:folder", "value": str(VENDORED.parent)}],
        }
    own = purl(project["name"], project["version"])
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": own,
                "name": project["name"],
                "version": project["version"],
                "description": project["description"],
                "licenses": [{"license": {"id": project["license"]}}],
                "purl": own,
            }
        },
        "components": [components[reference] for reference in sorted(components)],
    }
    # Of the contents, so that another bill has another number.
    return {**document, "serialNumber": uuid5(NAMESPACE_URL, json.dumps(document, sort_keys=True)).urn}


def purl(name: str, version: str) -> str:
    """The package URL. A plus sign of a local version is escaped."""
    return f"pkg:pypi/{name}@{version.replace('+', '%2B')}"


if __name__ == "__main__":
    target = Path(sys.argv[1])
    bill = bill_of_materials(Path(__file__).parent.parent)
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(json.dumps(bill, indent=2) + "\n", encoding="utf-8")
    sys.stdout.write(f"{target} has {len(bill['components'])} packages\n")
