"""Guess first: the text asks for a number, the cell that measures it shows the authors' guess."""

from .showing import show


def guessed(question: str, guess: float, measured: float, unit: str = "") -> None:
    """Show what was measured beside what the authors had guessed before they measured it."""
    both = f"the authors guessed {number(guess)}; measured: {number(measured)} {unit}".strip()
    show(f"**{question}** {both}.")


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
