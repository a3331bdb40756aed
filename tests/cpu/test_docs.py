"""The documents' examples print what they show, and the names in them exist."""

import argparse
import ast
import doctest
import re
import shlex
from pathlib import Path

import pytest

import hipgemm
from hipgemm import __main__

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(r"^ *```.*\n((?s:.*?))^ *```$", re.MULTILINE)


@pytest.mark.parametrize("name", ["use/sharding.md"])
def test_examples(name: str) -> None:
    found = doctest.testfile(str(DOCS / name), module_relative=False)
    assert found.attempted > 0
    assert found.failed == 0


def code(document: Path) -> list[str]:
    """Each line of a document's blocks of code, without comments, and each text between backquotes."""
    text = document.read_text()
    lines = [line.partition("  #")[0] for block in BLOCK.findall(text) for line in block.splitlines()]
    return lines + [" ".join(inline.split()) for inline in re.findall(r"`([^`]+)`", BLOCK.sub("", text))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_commands_exist(document: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Parsed(Exception):
        pass

    def parse_only(parser: argparse.ArgumentParser, arguments: list[str]) -> None:
        parse(parser, arguments)
        raise Parsed

    parse = argparse.ArgumentParser.parse_args
    monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse_only)
    (targets,) = re.findall(r"^\.PHONY: (.*)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for line in code(document):
        for target in re.findall(r"(?:^|[$=\w] )make ([a-z]+)$", line):
            assert target in targets.split(), line
        for arguments in re.findall(r"python -m hipgemm ([a-z].*)", line):
            if not re.search(r"\b[A-Z]\b", arguments):  # M, N, K are placeholders
                with pytest.raises(Parsed):
                    __main__.main(shlex.split(arguments))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_files_exist(document: Path) -> None:
    folders = r"(?:bridge|docker|docs|emulator|examples|hipgemm|src_hip|tests|tools|\.ci|\.github)/"
    for line in code(document):
        for file in re.findall(rf"(?:^|[ =]|\$PWD/|src/)({folders}[\w./*-]*[\w/])", line):
            assert list(ROOT.glob(file)), line
    for link, heading in re.findall(r"\]\(([^)#:]*)#?([^):]*)\)", document.read_text()):
        target = document.parent / link if link else document
        assert target.exists(), link
        assert not heading or heading in _anchors(target), f"{link}#{heading}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_tests_exist(document: Path) -> None:
    """`file::test`, or `::test` of the file that was named last."""
    file = ""
    for path, name in re.findall(r"`(tests/[\w/]+\.py)?::(\w+)`", document.read_text()):
        file = path or file
        functions = [
            x.name for x in ast.parse((ROOT / file).read_text()).body if isinstance(x, ast.FunctionDef)
        ]
        assert name in functions, f"{file}::{name}"


def test_promises_of_the_runtime_have_tests() -> None:
    """Each section of docs/use/runtime.md has some."""
    promises, tests = (DOCS / "use" / "runtime.md").read_text().split("## Tests of these promises")
    assert len(re.findall(r"^\| .*::test_", tests, re.MULTILINE)) > 3 * len(
        re.findall("^## ", promises, re.MULTILINE)
    )


def _anchors(document: Path) -> list[str]:
    """The anchors of its headings."""
    headings = re.findall(r"^#+ (.*)", document.read_text(), re.MULTILINE)
    return [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]


def test_failures_are_reported_as_rocm_md_says() -> None:
    """The left column of its table of failures: parts of messages as they are in the sources."""
    table = (DOCS / "use/rocm.md").read_text().partition("## What failures mean")[2].partition("\n## ")[0]
    messages = re.findall(r"^\| `(.*?)` \|", table, re.MULTILINE)
    assert len(messages) > 5
    sources = "".join(
        path.read_text() for folder in ("hipgemm", "tests") for path in (ROOT / folder).rglob("*.py")
    )
    for message in messages:
        assert message in sources


def test_api_reference_has_every_public_name() -> None:
    """Made from the docstrings by `make docs`."""
    text = (DOCS / "use/api.md").read_text()
    documented = re.findall(r"^\.\. auto\w+:: hipgemm\.([\w.]+)$", text, re.MULTILINE)
    public = [name for name in dir(hipgemm) if name != "__version__"]
    assert sorted(public) == sorted(hipgemm.__all__)
    submodules = [f"sharding.{name}" for name in hipgemm.sharding.__all__ if name not in public]
    assert sorted(documented) == sorted([*public, *submodules, "reference", "testing"])


def test_glossary_is_sorted_and_used() -> None:
    text = (DOCS / "glossary.md").read_text()
    terms = re.findall(r"^([^\n:]+)\n: ", text, re.MULTILINE)
    assert len(terms) > 30
    assert terms == sorted(terms, key=str.lower)
    files = [*(path for path in DOCUMENTS if path.name != "glossary.md"), *(ROOT / "hipgemm").rglob("*.py")]
    used = "".join(path.read_text() for path in files).lower()
    for term in terms:
        assert re.sub(r" \(.*|,.*", "", term).lower() in used, term
