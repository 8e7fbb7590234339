"""docs/differences.md says what the contract tests show."""

from e2e.contract.differences import differences, main


def test_the_list_of_differences_is_up_to_date() -> None:
    assert main(["--check"]) == 0


def test_every_difference_says_why() -> None:
    assert [each for each, _, _ in differences() if not all(each) or "|" in "".join(each)] == []
