"""Words after a number that change its value: multiples such as ``million`` and ``k``, and operations.

A word after a number usually says what was counted, as in ``12 apples``, and does not matter. These words do.
"""

from __future__ import annotations

from gagpo.envs.math.verify.spelling import number_words

_POWERS_OF_TEN = {
    1: "tens",
    2: "hundreds",
    3: "thousands thou k",
    4: "wan myriad myriads",
    6: "millions mln mio mn mill",
    8: "yi",
    9: "billions bn bln",
    12: "trillions tn trn",
    15: "quadrillion quadrillions",
    18: "quintillion quintillions",
    21: "sextillion sextillions",
}
_NUMBERS = {"dozens": 12, "score": 20, "scores": 20, "gross": 144, "lakh": 10**5, "crore": 10**7}
_NUMBERS |= {"lakhs": 10**5, "crores": 10**7}
MULTIPLES = {
    **number_words.MULTIPLES,
    **_NUMBERS,
    **{word: 10**power for power, words in _POWERS_OF_TEN.items() for word in words.split()},
}
"""Multiples by word, in lower case."""

LETTERS = {"K": 10**3, "M": 10**6, "MM": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
"""Letters that multiply, unless they are the unit: ``5 M`` is five million or molar."""
MONEY_LETTERS = {**LETTERS, "k": 10**3, "m": 10**6, "mm": 10**6, "b": 10**9, "t": 10**12, "mil": 10**6}
"""Letters that multiply after an amount of money."""

_WORDS = """
and not nor half halves third thirds quarter fourth plus minus times over squared cubed doubled tripled quadrupled
halved negated inverted fold less more factorial factorials subfactorial base binary octal hex hexadecimal duodecimal
ternary dec decimal choose mod modulo modulus power powers exponent root radical reciprocal inverse percentile promille
grand mil tenths hundredths thousandths millionths tenth kilo mega giga tera milli micro nano zillion zillions gazillion
bazillion factorielle factoriel fattoriale fatorial cuadrado quadrato quadrat hoch cubo demi medio halb
decena decenas dizaine dizaines zehner cientos centaines hundert cento centinaia tausend mille mila millares milhares
duizend tys tysiac qian millon millones millionen milioni milione milhoes miljoen milion miliony juta milliard
milliards milliarde milliarden miliardo miliardi miljard miliard miliardy mrd mld
"""
OPERATIONS = frozenset((*_WORDS.split(), *number_words.SMALL, *MULTIPLES))
"""Words that are not the name of what was counted, also those of other languages."""
