"""Predict first: a number is written down before the cell that measures it."""

from dataclasses import dataclass

from .showing import show


@dataclass(frozen=True)
class Prediction:
    question: str
    guess: float
    unit: str

    def against(self, measured: float) -> None:
        """Show the guess beside what was measured, and how far off it was, as a factor."""
        both = f"guess {number(self.guess)}, measured {number(measured)} {self.unit}".strip()
        low, high = sorted([abs(self.guess), abs(measured)])
        if low == high:
            verdict = "right"
        elif low == 0 or self.guess * measured < 0:
            verdict = "far off"
        else:
            verdict = f"off by a factor of {high / low:.{2 if high / low < 10 else 0}f}"
        show(f"**{self.question}** {both}: {verdict}.")


def predict(question: str, guess: float, unit: str = "") -> Prediction:
    """Write a guess down, before the cell that measures.

    In the stored notebook the guess is what the authors thought before they had measured.
    """
    show(f"**{question}** Written down: {number(guess)} {unit}".strip() + ".")
    return Prediction(question, guess, unit)


def number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 100 or value == int(value) else f"{value:.3g}"
