"""Guess first: the text asks for a number, and the cell that measures it folds the answer."""

from .showing import show


def guessed(question: str, guess: float, measured: float, unit: str = "") -> None:
    """Show a folded answer: what was measured, and what the authors guessed before they measured.

    question: says in a few words which number is meant; unit: stands after the measured number.
    """
    found = f"measured **{number(measured)}** {unit}".strip()
    answer = f"{question} {found}. The authors guessed {number(guess)}."
    show(f"<details><summary>Answer</summary>\n\n{answer}\n\n</details>")


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
