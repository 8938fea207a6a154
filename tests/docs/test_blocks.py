"""Each command, program and file of a page is run by a test, or has a reason why not."""

from __future__ import annotations

import re

import pytest

from tests.cli.system import test_docs as cli_page
from tests.cli.system import test_security_page as security_page
from tests.client.system import test_docs as client_page
from tests.docs.held import ALONE, DEVELOPERS, NO_COMMANDS, NOT_RUN, OWN_TESTS, WITH_JAVA
from tests.docs.pages import DOCS, FILES, OUTPUT, PROGRAM, SHELL, blocks, blocks_of, indented_commands, pages
from tests.sources import ROOT
from tests.testing.system import test_docs as testing_page

MAKEFILE = (ROOT / "Makefile").read_text()
OF_THE_TEST_KIT = {"pybroker_cluster", "pybroker_config", "pybroker_of_session"}
"""Names that begin as metrics do, and are none."""
TARGETS = set(re.findall(r"^\.PHONY: ([\w-]+)$", MAKEFILE, re.M))


def left(page: str, run: set[str]) -> list[str]:
    """The places of a page's blocks that are neither run nor have a reason."""
    found = [block for block in blocks(page) if block.text not in run and (page, block.first_line) not in NOT_RUN]
    return [block.place for block in found]


def test_every_page_is_held() -> None:
    """Every page is in one list of tests/docs/held.py, and its test exists."""
    lists = [*ALONE, *WITH_JAVA, *OWN_TESTS, *NO_COMMANDS, *DEVELOPERS]
    assert sorted(lists) == sorted(pages())
    assert not [path for path in OWN_TESTS.values() if not (ROOT / path).is_file()]


def test_every_reason_is_of_a_block() -> None:
    """Every reason belongs to an existing, unchanged block, and the tests that it names exist."""
    there = {(page, block.first_line) for page in pages() for block in blocks(page)}
    assert not sorted(set(NOT_RUN) - there)
    named = [path for reason in NOT_RUN.values() for path in re.findall(r"tests/[\w/]+(?:\.py)?", reason)]
    assert not [path for path in named if not (ROOT / path).exists()]


@pytest.mark.parametrize("page", sorted(pages()))
def test_every_block_is_of_a_kind(page: str) -> None:
    """Every block is fenced and has a language, so that the tests know how a reader uses it."""
    assert not indented_commands(pages()[page].read_text())
    kinds = {SHELL, PROGRAM, OUTPUT, *FILES, "shell"}
    assert not [block.place for block in blocks(page) if block.language not in kinds]


@pytest.mark.parametrize("page", NO_COMMANDS)
def test_pages_without_commands(page: str) -> None:
    assert not [block.place for block in blocks(page) if block.language != OUTPUT]


@pytest.mark.parametrize("page", DEVELOPERS)
def test_commands_of_developers(page: str) -> None:
    """Developers' commands name Makefile targets and files that exist."""
    text = "".join(block.text for block in blocks(page))
    assert set(re.findall(r"\bmake ([a-z][\w-]*)", text)) <= TARGETS
    files = re.findall(r"\b(?:tests|tools|bench|core|examples)/[\w/]+\.\w+", text)
    assert not [name for name in files if not (ROOT / name).exists()]


def test_the_pages_with_tests_of_their_own() -> None:
    """The pages with separate tests have only blocks that such a test uses."""
    assert not left("testing.md", set(testing_page.EXAMPLES))
    assert not left("client.md", set(client_page.EXAMPLES.values()))
    commands = set(cli_page.COMMANDS)
    typed = {block.text for block in blocks("cli.md") if set(block.text.splitlines()) <= commands}
    assert not left("cli.md", typed)
    files = {security_page.BROKER, security_page.ADMIN, security_page.ALONE, security_page.TOKENS}
    files |= {security_page.REPORTS, security_page.PEERS, security_page.ZOOKEEPER, security_page.PROGRAM}
    typed = {*security_page.TEN, *security_page.MORE}
    shells = (block for block in blocks("security.md") if block.language == SHELL)
    run = {each.text for each in shells if set(re.split(r"(?<!\\)\n", each.text.strip())) <= typed}
    assert not left("security.md", files | run)


def test_metrics_that_pages_name() -> None:
    """Metrics that pages name are on docs/metrics.md."""
    known = set(re.findall(r"^\| `(\w+)` \|", (DOCS / "metrics.md").read_text(), re.M))
    wrong = {}
    for page, path in pages().items():
        named = set(re.findall(r"\bpybroker_[a-z_]+[a-z]\b", path.read_text())) - OF_THE_TEST_KIT
        wrong[page] = sorted({name.removesuffix("_bucket") for name in named} - known)
    assert not {page: names for page, names in wrong.items() if names}


def test_make_targets_that_pages_name() -> None:
    """Make targets that pages name are in the Makefile."""
    for page, path in pages().items():
        assert set(re.findall(r"`make ([a-z][\w-]*)", path.read_text())) <= TARGETS, page


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("    pybroker topics list\n", 1),
        ("    $ .venv/bin/pybroker serve\n", 1),
        ("```sh\n    pybroker topics list\n```\n", 0),
        ("    data/\n      meta.properties\n", 0),
    ],
)
def test_the_rule_of_indented_commands(text: str, count: int) -> None:
    assert len(indented_commands(text)) == count


def test_the_rule_of_blocks() -> None:
    """The check finds a block with its language, its title and its place, and removes an indented block's indent."""
    text = 'Text\n\n```ini title="a.ini"\n[a]\n```\n\n- item\n\n    ```sh\n    ls\n    ```\n'
    first, second = blocks_of("page.md", text)
    assert first == ("page.md", 3, "ini", "a.ini", "[a]\n") and second == ("page.md", 9, "sh", "", "ls\n")
