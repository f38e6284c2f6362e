r"""Find operations that an answer leaves unevaluated, so the question cannot be returned as its own answer.

Integrals, sums, products, limits, derivatives and determinants always count as unevaluated; functions such as a sine, a
root or a binomial coefficient only if applied to constants: ``\sin\frac{\pi}{6}`` was not computed, but
``\frac{\sin x}{\cos x}`` is a form of ``\tan x``. Operations in the gold answer are allowed.

This module searches LaTeX; :mod:`gagpo.envs.math.verify.unfinished` looks at arithmetic, which needs a parser.
"""

from __future__ import annotations

import re

from gagpo.envs.math.verify.spelling.symbols import variables

_OPERATORS = {
    "integral": re.compile(r"\\(?:i{0,3}|o|id)int(?![a-zA-Z])"),
    "sum": re.compile(r"\\sum(?![a-zA-Z])"),
    "product": re.compile(r"\\(?:co)?prod(?![a-zA-Z])"),
    "limit": re.compile(r"\\(?:lim|limsup|liminf|sup|inf)(?![a-zA-Z])"),
    "derivative": re.compile(
        r"\\frac\s*\{\s*(?:\\partial|\\mathrm\s*\{d\}|d)(?![a-zA-Z]*\s*[-+])[^{}]*(?:\{[^{}]*\}[^{}]*)*\}"
        r"\s*\{\s*(?:\\partial|\\mathrm\s*\{d\}|d)\s*\\?[a-zA-Z]+\s*(?:\^[^{}]+|\^\{[^{}]*\})?\s*\}"
        r"|\\nabla(?![a-zA-Z])|[)\]}]\s*(?:'|\^\s*\{?\s*\\prime)"
    ),
    "power of zero": re.compile(r"\^\s*(?:0(?![\d.])|\{\s*0\s*\})"),
    "determinant": re.compile(r"\\begin\s*\{vmatrix\}|\\det(?![a-zA-Z])"),
}

_TRIGONOMETRIC = r"(?:sin|cos|tan|cot|sec|csc)h?|tg|ctg"
_FUNCTION = re.compile(
    rf"\\(?P<name>(?:arc|ar|a)?(?:{_TRIGONOMETRIC})|ln|log|lg|sqrt|gcd|lcm|max|min|arg|bmod|[dt]?binom|lfloor|lceil)"
    r"(?![a-zA-Z])"
)
_OPERATOR_NAME = re.compile(r"\\(?:operatorname\*?\s*\{\s*([a-zA-Z]+)\s*\}|(?:text|mathrm)\s*\{\s*(gcd|lcm)\s*\})")
_CIRCULAR = re.compile(r"^(arc)?(?:sin|cos|tan|cot|sec|csc)$")
_SYNONYMS = {"ln": "log", "lg": "log", "tg": "tan", "ctg": "cot", "sqrt": "root", "dbinom": "binom", "tbinom": "binom"}
_SCRIPT = re.compile(r"\s*[\^_]\s*(?:\{([^{}]*)\}|(\\[a-zA-Z]+|.))")
_DEGREE = re.compile(r"\s*\[([^\]]*)\]")
_INVERSE = re.compile(r"\s*\^\s*\{\s*-\s*1\s*\}")
_POWER = re.compile(r"\^\s*(?=[{(])")
_ABSOLUTE = re.compile(r"\|([^|]+)\||\\lvert(.+?)\\rvert")
_FACTORIAL = re.compile(r"(?:(?<![a-zA-Z])\d\s*|\d\s*\)\s*)!(?!=)")
_QUOTIENT = re.compile(r"\\frac\{(\d+)\}\{(\d+)\}|(?<![\d.}^])(\d+)\s*/\s*(\d+)(?![\d.])", re.ASCII)
_IMAGINARY = re.compile(r"(?<![a-zA-Z\\])i(?![a-zA-Z])")
_BRACKETS = {"(": ")", "[": "]", "{": "}"}
_TERM_END = re.compile(r"[-+=<>,;:&|)\]}]|\\(?:le|ge|ne|in|to|pm|mp|rfloor|rceil)(?![a-zA-Z])")


def unevaluated_operations(gold: str, prediction: str) -> frozenset[str]:
    r"""The unevaluated operations of ``prediction`` (normalised LaTeX) that ``gold`` does not contain.

    >>> sorted(unevaluated_operations(r"\frac{\pi}{4}", r"\int_0^1 \frac{1}{1+x^2} dx"))
    ['integral']
    >>> sorted(unevaluated_operations(r"\sqrt{7}", r"8\sin\frac{\pi}{7}\sin\frac{2\pi}{7}\sin\frac{3\pi}{7}"))
    ['sin']
    >>> unevaluated_operations(r"\tan x", r"\frac{\sin x}{\cos x}"), unevaluated_operations(r"\ln 8", r"3 \ln 2")
    (frozenset(), frozenset())
    """
    operations = _operations(prediction, of_variables=False)
    if not operations:
        return operations
    allowed = _operations(gold, of_variables=True)
    # A binomial coefficient that may stay can also be written with factorials.
    return operations - allowed - (frozenset(("factorial",)) if "binom" in allowed else frozenset())


def _operations(latex: str, of_variables: bool) -> frozenset[str]:
    """The operators and functions of constants in ``latex``; with ``of_variables`` all functions."""
    text = _OPERATOR_NAME.sub(lambda spelled: rf"\{spelled[1] or spelled[2]} ", latex)
    operations = {name for name, pattern in _OPERATORS.items() if pattern.search(text)}
    if "!" in text and _FACTORIAL.search(text):
        operations.add("factorial")
    quotients = [
        (int(quotient[1] or quotient[3]), int(quotient[2] or quotient[4])) for quotient in _QUOTIENT.finditer(text)
    ]
    if any(top % bottom == 0 for top, bottom in quotients if bottom):
        operations.add("division")
    for match in _ABSOLUTE.finditer(text):
        if of_variables or not variables(match[1] or match[2]):
            operations.add("absolute value")
    for match in _FUNCTION.finditer(text):
        name, arguments = _function_call(text, match["name"], match.end())
        if of_variables or not variables(arguments):
            operations.add(name)
    for match in _POWER.finditer(text):
        exponent = _bracketed(text, match.end())[0]
        base = _last_group(text[: match.start()].rstrip())
        if base == "e" and _IMAGINARY.search(exponent) and (of_variables or not variables(exponent)):
            operations.add("exponential")
        if base == "e" and re.search(r"\\(?:ln|log)(?![a-zA-Z])", exponent):
            operations.add("exponential of a logarithm")
        is_root = re.search(r"\\frac|/|\.", exponent) is not None
        if is_root and (of_variables or not (base == "e" or variables(exponent + base))):
            operations.add("root")
    return frozenset(operations)


def _function_call(text: str, name: str, position: int) -> tuple[str, str]:
    """The canonical name of the function that ends at ``position``, and its arguments with base or degree."""
    name = re.sub(rf"^(?:arc|ar|a)(?={_TRIGONOMETRIC})", "arc", name)
    name = _SYNONYMS.get(name, name)
    if name in ("lfloor", "lceil"):
        return name, text[position:].partition(rf"\r{name[1:]}")[0]
    if name == "binom":
        top, position = _group(text, position)
        return name, f"{top} {_group(text, position)[0]}"
    arguments = ""
    while script := (_DEGREE if name == "root" else _SCRIPT).match(text, position):
        if _INVERSE.match(text, position):
            name = f"arc{name}"
        arguments += f" {script[1] or script[script.re.groups]}"
        position = script.end()
    name = _CIRCULAR.sub(r"\1sin", name)  # a sine is as unevaluated as the cosine of the other angle
    return name, f"{arguments} {_group(text, position)[0]}"


def _group(text: str, position: int) -> tuple[str, int]:
    """The bracket, fraction or product of symbols at ``position``, and where it ends."""
    while position < len(text) and text[position] == " ":
        position += 1
    if text.startswith("\\frac", position):
        top, middle = _group(text, position + len("\\frac"))
        bottom, end = _group(text, middle)
        return f"{top} {bottom}", end
    if text[position : position + 1] in _BRACKETS:
        return _bracketed(text, position)
    end = position + 1
    while end < len(text) and not _TERM_END.match(text, end):
        end = _bracketed(text, end)[1] if text[end] in _BRACKETS else end + 1
    return text[position:end], end


def _bracketed(text: str, position: int) -> tuple[str, int]:
    opening = text[position]
    closing = _BRACKETS[opening]
    depth = 0
    for end in range(position, len(text)):
        depth += (text[end] == opening) - (text[end] == closing)
        if depth == 0:
            return text[position + 1 : end], end + 1
    return text[position + 1 :], len(text)


def _last_group(text: str) -> str:
    """The base of an exponent that follows ``text``."""
    if not text.endswith((")", "}", "]")):
        return text[-1:]
    depth = 0
    for start in range(len(text) - 1, -1, -1):
        depth += (text[start] in ")}]") - (text[start] in "({[")
        if depth == 0:
            return text[start:]
    return text
