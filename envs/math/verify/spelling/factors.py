"""Words after a number that change its value: multiples such as ``million`` and ``k``, and operations.

A word after a number usually says what was counted, as in ``12 apples``, and does not matter. These words do.
"""

from __future__ import annotations

from gagpo.envs.math.verify.spelling import number_words

_POWERS_OF_TEN = {
    1: "tens decena decenas dizaine dizaines zehner",
    2: "hundreds cientos centaines hundert cento centinaia",
    3: "thousands thou tausend mille mila millares milhares duizend k tys tysiac qian",
    4: "wan myriad myriads",
    6: "millions mln mio mn mill millón millon millones millionen milioni milione milhão milhões milhoes miljoen milion"
    " miliony milionów milyon triệu juta",
    8: "yi",
    9: "billions bn bln milliard milliards milliarde milliarden miliardo miliardi miljard miliard miliardy mrd mld",
    12: "trillions tn trn",
    15: "quadrillion quadrillions",
    18: "quintillion quintillions",
    21: "sextillion sextillions",
}
MULTIPLES = {
    **number_words.MULTIPLES,
    "dozens": 12,
    "score": 20,
    "scores": 20,
    "gross": 144,
    "lakh": 10**5,
    "lakhs": 10**5,
    "crore": 10**7,
    "crores": 10**7,
    **{word: 10**power for power, words in _POWERS_OF_TEN.items() for word in words.split()},
}
"""Multiples by word, in lower case."""

LETTERS = {"K": 10**3, "M": 10**6, "MM": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}
"""Letters that multiply, unless they are the unit: ``5 M`` is five million or molar."""
MONEY_LETTERS = {**LETTERS, "k": 10**3, "m": 10**6, "mm": 10**6, "b": 10**9, "t": 10**12, "mil": 10**6}
"""Letters that multiply after an amount of money."""

OPERATIONS = frozenset(
    (
        *(
            "and",
            "not",
            "nor",
            "half",
            "halves",
            "third",
            "thirds",
            "quarter",
            "fourth",
            "plus",
            "minus",
            "times",
            "over",
        ),
        *(
            "squared",
            "cubed",
            "doubled",
            "tripled",
            "quadrupled",
            "halved",
            "negated",
            "inverted",
            "fold",
            "less",
            "more",
        ),
        *("factorial", "factorials", "subfactorial", "fakultät", "factorielle", "factoriel", "fattoriale", "fatorial"),
        *("base", "binary", "octal", "hex", "hexadecimal", "duodecimal", "ternary", "dec", "decimal", "choose"),
        *("mod", "modulo", "modulus", "power", "powers", "exponent", "root", "radical", "reciprocal", "inverse"),
        *("percentile", "promille", "grand", "mil", "tenths", "hundredths", "thousandths", "millionths", "tenth"),
        *("au carré", "cuadrado", "quadrato", "quadrat", "hoch", "cubo", "carré", "demi", "medio", "halb"),
        *("kilo", "mega", "giga", "tera", "milli", "micro", "nano", "zillion", "zillions", "gazillion", "bazillion"),
        *("факториал", "квадрат", "пол", "половина", "в", "на"),
        *number_words.SMALL,
        *MULTIPLES,
    )
)
"""Words that are not the name of what was counted."""
