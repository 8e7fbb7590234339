"""docs/troubleshooting.md quotes messages that the product has, and leads to places that exist."""

import re
from pathlib import Path

import pytest

TOP = Path(__file__).parents[1]
PAGE = (TOP / "docs" / "troubleshooting.md").read_text("utf-8")
MESSAGES = re.findall(r"^\| `([^`]+)` \|", PAGE, re.MULTILINE)
PLACES = re.findall(r"\]\(([a-z]+\.md)#([a-z-]+)\)", PAGE)


def sources() -> str:
    files = (file for root in ("api", "operator", "services") for file in (TOP / root).rglob("*.py"))
    text = "".join(file.read_text("utf-8") for file in files)
    return re.sub(r'"\s*\n\s*f?"', "", text)  # a message over several lines


def test_each_message_is_one_of_the_product() -> None:
    assert len(MESSAGES) > 8
    known = sources()
    assert [message for message in MESSAGES if message not in known] == []


@pytest.mark.parametrize(("page", "heading"), PLACES)
def test_each_place_exists(page: str, heading: str) -> None:
    headings = re.findall(r"^#+ (.+)$", (TOP / "docs" / page).read_text("utf-8"), re.MULTILINE)
    assert heading in {re.sub(r"[^a-z0-9 -]", "", each.lower()).replace(" ", "-") for each in headings}
