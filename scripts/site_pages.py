"""Pages of the website that are not in docs/: CONTRIBUTING, CHANGELOG and the examples. mkdocs.yml names this file."""

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
# (file of the repository, page of the site)
TEXTS = {"CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
# The tests name some blocks: ```frames ping. The site wants only the language.
FENCE = re.compile(r"^( *```\w+) .*$", re.MULTILINE)
EXAMPLE = re.compile(r"\]\((?:\.\./)*examples/(\w+)\.py\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    for name, page in TEXTS.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=text))
    for path in sorted((ROOT / "examples").glob("*.py")):
        text = f"# {path.name}\n\n```python\n{path.read_text(encoding='utf-8')}```\n"
        files.append(File.generated(config, f"examples/{path.stem}.md", content=text))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Links to examples lead to their pages. Only pages at the top of docs/ have such links."""
    return FENCE.sub(r"\1", EXAMPLE.sub(r"](examples/\1.md)", markdown))
