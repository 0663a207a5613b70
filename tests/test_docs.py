"""The docs say what the code has: every error, every command, and links that lead somewhere."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import generate_latest
from typer.core import TyperGroup as Group
from typer.main import get_command

from penstock import errors
from penstock.cli import app
from penstock.cli.root import loaded
from penstock.engine.lags import LagCollector, Lags
from penstock.engine.metrics import Metrics
from penstock.errors import PenstockError, StoreTooNew
from penstock.model import Request
from penstock.settings import TABLE
from penstock.store.postgres import schema as postgres
from penstock.store.sqlite import schema as sqlite

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / name for name in ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")] + sorted(
    (ROOT / "docs").rglob("*.md")
)
GUIDES = [page for page in PAGES if page.is_relative_to(ROOT / "docs") and not page.name[0].isdigit()]
"""The pages of docs/ without the decision records, which all have the same readers."""


def text(*names: str) -> str:
    return "".join((ROOT / name).read_text(encoding="utf-8") for name in names)


def commands() -> set[str]:
    return set(get_command(app).commands)  # type: ignore[attr-defined]


def test_every_error_is_documented_with_when_and_whether_to_retry() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+ \| .+) \|$", text("docs/errors.md"), re.MULTILINE))
    classes = {
        name for name, value in vars(errors).items() if isinstance(value, type) and issubclass(value, PenstockError)
    }
    assert set(rows) == classes


def test_every_command_is_documented() -> None:
    documented = set(re.findall(r"penstock ([\w-]+)", text("README.md", "docs/cli.md", "docs/operations.md")))
    assert commands() <= documented


def test_no_command_is_documented_that_does_not_exist() -> None:
    templates = (ROOT / "src/penstock/console/templates").glob("*.html")
    pages = "".join(page.read_text("utf-8") for page in [*PAGES, *templates])
    code = re.findall(r"`([^`\n]+)`|^(?:\$ )?(penstock .*)$|<code>(penstock [^<]*)</code>", pages, re.MULTILINE)
    named = [found for spans in code if (found := re.match(r"penstock ([a-z-]+)(?: ([a-z-]+))?", "".join(spans)))]
    # "ready" is a line of the log, "count" the example that CONTRIBUTING adds.
    assert {found[1] for found in named} - {"ready", "count"} <= commands()
    groups = {name: group.commands for name in commands() if isinstance(group := loaded(name), Group)}
    inner = {(found[1], found[2]) for found in named if found[1] in groups and found[2]}
    assert {(group, name) for group, name in inner if name not in groups[group]} == set()


def test_every_request_is_documented() -> None:
    page = text("docs/engine.md")
    assert [
        kind.__name__
        for kind in Request.__subclasses__()
        if kind.__module__.startswith("penstock.model") and f"`{kind.__name__}`" not in page
    ] == []


def definitions(path: str) -> Iterator[str]:
    """What a module defines, as `function`, `CONSTANT`, `Class` and `Class.method`."""
    function = ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.parse(text(path)).body:
        if isinstance(node, function | ast.ClassDef):
            yield node.name
        if isinstance(node, ast.ClassDef):
            yield from (f"{node.name}.{part.name}" for part in node.body if isinstance(part, function))
        if isinstance(node, ast.AnnAssign):
            yield ast.unparse(node.target)


def test_every_step_of_the_path_of_a_request_is_in_its_module() -> None:
    steps = re.findall(r"^[\w │▼]* ([\w/]+\.py) +([\w.]+)", text("docs/engine.md"), re.MULTILINE)
    assert [step for step in steps if step[1] not in definitions(f"src/penstock/{step[0]}")] == []
    assert len(steps) > 30


def test_every_function_that_contributing_places_in_a_module_is_there() -> None:
    places = re.findall(r"((?:`[\w.]+`(?:,| and)? )+)in\s+`(src/[\w/]+\.py)`", text("CONTRIBUTING.md"))
    named = [(name, path) for names, path in places for name in re.findall(r"`([\w.]+)`", names)]
    assert [(name, path) for name, path in named if name not in definitions(path)] == []
    assert len(named) > 5


def test_the_pages_name_the_schema_that_the_code_has() -> None:
    version = sqlite.SCHEMA_VERSION
    operations = text("docs/operations.md")
    assert f"schema {version} on SQLite and schema {postgres.SCHEMA_VERSION} on PostgreSQL." in operations
    assert str(StoreTooNew("shop-data", version + 1, version)) in operations
    assert f"The schema has a version, now {version}." in text("docs/store.md")


def test_every_limit_a_page_names_is_a_setting() -> None:
    pages = [f"docs/{name}.md" for name in ("engine", "errors", "store", "operations")]
    named = set(re.findall(r"`(\w+_max|disk_\w+)`", text("README.md", *pages)))
    assert named <= set(TABLE)
    assert named


def test_every_error_that_operations_names_exists() -> None:
    named = set(re.findall(r"`([A-Z][a-z]+[A-Z]\w+)`", text("docs/operations.md")))
    # Remits has names of its own for its codes.
    assert named - {"InternalError"} <= set(vars(errors))
    assert named


def test_operations_names_metrics_that_there_are() -> None:
    metrics = Metrics()
    metrics.requests_of("mq")
    shown = "penstock_disk_free_bytes"
    for registry in (metrics.registry, LagCollector(Lags((), (), True), None)):
        shown += generate_latest(registry).decode()
    named = set(re.findall(r"\bpenstock_\w+", text("docs/operations.md")))
    assert {name for name in named if name not in shown} == set()
    assert named


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:]*)(?:#([^)]*))?\)", page.read_text(encoding="utf-8"))
    assert [link for link, _ in links if not (page.parent / link).exists()] == []
    targets = [(page.parent / link if link else page, anchor) for link, anchor in links if anchor]
    assert [anchor for target, anchor in targets if anchor not in anchors(target)] == []


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub and the website name them, and those that it sets in HTML."""
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.+)$", prose, re.MULTILINE)
    texts = [re.sub(r"\]\([^)]*\)", "", heading).lower() for heading in headings]
    named = re.findall(r'<a id="([^"]+)">', prose)
    return {re.sub(r"[^\w\- ]", "", text).replace(" ", "-") for text in texts} | set(named)


def test_the_website_and_the_index_have_every_page_once() -> None:
    pages = sorted(str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md"))
    nav = re.findall(r"[\w./-]+\.md", text("mkdocs.yml").partition("\nnav:\n")[2])
    examples = [f"examples/{path.stem}.md" for path in (ROOT / "examples").glob("*.py")]
    assert sorted(nav) == sorted([*pages, *examples, "changelog.md", "contributing.md"])
    index = re.findall(r"\]\(([^)]+\.md)\)", text("docs/README.md"))
    assert sorted(index) == [page for page in pages if page != "README.md"]


def test_the_readme_explains_each_protocol_where_it_first_appears() -> None:
    readme = text("README.md")
    for name in ("Res01", "MqFrames", "Remits"):
        assert re.search(rf"\*\*\[{name}\]\([^)]+\)\*\* is a ", readme), name
        first = re.search(rf"(?<!\w){name}(?!\w)", readme)
        assert first is not None
        assert readme[: first.start()].endswith("**["), f"{name} appears before its explanation"


TERMS = """event stream context version position commit mark producer queue lease allocation subscription log iterator
seal gate lake bronze silver gold watermark tombstone erasure back-pressure idempotent lag checkpoint Res01 MqFrames
Remits principal right scope grant credential token view audit""".split()  # noqa: SIM905


def test_the_glossary_defines_each_term_once() -> None:
    rows = re.findall(r"^\| (?:<a [^>]*></a>)?\*\*([^*]+)\*\* \|", text("docs/glossary.md"), re.MULTILINE)
    defined = [term for row in rows for term in row.split(", ")]
    assert len(defined) == len(set(defined))
    assert {*TERMS, "at least once"} <= set(defined)


def test_every_decision_is_listed_in_the_index() -> None:
    records = {f"decisions/{path.name}" for path in (ROOT / "docs" / "decisions").glob("[0-9]*.md")}
    assert records
    assert records <= set(re.findall(r"\]\(([^)]+)\)", text("docs/README.md")))


@pytest.mark.parametrize("page", GUIDES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_opens_with_its_readers_and_what_they_can_do_afterwards(page: Path) -> None:
    title, opening, *_ = page.read_text(encoding="utf-8").split("\n\n", 2)
    assert title.startswith("# ")
    assert re.fullmatch(r"\*For [^*]* you can [^*]*\.\*", opening)
    assert len(opening.splitlines()) <= 3
