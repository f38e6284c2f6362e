r"""Gold answers and responses with the verdict a careful person gives, labelled by hand.

``+`` right, ``-`` wrong; the response is boxed unless it holds a mark of its own. The person reads the answer as a
marker of an examination would: value and form of the final answer count, spelling does not; arithmetic that the
question asked for must have been carried out.
"""

import decimal
from fractions import Fraction

import math_verify
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.math.compare import Policy
from envs.math.extract import extract
from envs.math.reading import Number, Unreadable, canonical, read
from envs.math.verifier import GoldError, Verifier, read_gold
from envs.math.verify_pool import VerifyPool

LABELLED = r"""
# integers
+ | 7 | 7
+ | 7 | $7$
+ | 7 | 7.
+ | 7 | 7.0
+ | 7 | +7
+ | 7 | 007
+ | 7 | seven
+ | 7 | \text{seven}
+ | 42 | forty-two
+ | 7 | x = 7
+ | 7 | \textbf{7}
+ | 7 | 3 + 4 = 7
- | 7 | 3 + 4 = 8
- | 7 | 3 + 4
- | 7 | 14/2
- | 7 | 8
- | 7 | -7
- | 7 | 7x
- | 7 | 7 or 8
- | 7 | 7, 8
- | 7 | 77
- | 7 | \sqrt{7}
- | 7 | x
+ | -3 | -3
+ | -3 | −3
+ | -3 | minus 3
+ | -3 | (-3)
- | -3 | 3
+ | 0 | 0
+ | 0 | -0
- | 0 | \emptyset
+ | 10000000000000000 | 10^{16} = 10000000000000000
- | 10000000000000001 | 10000000000000000
- | 7 | 7!
+ | 7 | \(7\)
+ | 7 | \boxed{7}
# thousands
+ | 1234 | 1,234
+ | 1,234 | 1234
+ | 1234567 | 1,234,567
+ | 1234567 | 1{,}234{,}567
+ | 1234567 | 1\,234\,567
+ | 1234567 | 1 234 567
- | 1234 | 1,243
- | 1234 | 12,34
- | 1,234 | 234
+ | 1,2 | 2, 1
# fractions and decimals
+ | 1/2 | \frac{1}{2}
+ | \frac{1}{2} | 0.5
+ | \frac12 | .5
+ | \frac{1}{2} | \dfrac{1}{2}
+ | \frac{1}{2} | 1/2
+ | \frac{1}{2} | \tfrac12
+ | \frac{1}{2} | ½
+ | \frac{1}{2} | \frac{2}{4}
+ | 0.5 | \frac{1}{2}
- | \frac{1}{2} | \frac{2}{1}
- | \frac{1}{2} | 0.05
- | \frac{1}{2} | \frac{1}{2}x
+ | -\frac{1}{2} | \frac{-1}{2}
+ | -\frac{1}{2} | -\frac{1}{2}
+ | -\frac{1}{2} | -0.5
+ | -\frac{1}{2} | \frac{1}{-2}
+ | \frac{1}{3} | 0.333333
+ | \frac{1}{3} | 0.3333333333
+ | \frac{1}{3} | 0.\overline{3}
+ | \frac{2}{3} | 0.666667
+ | \frac{2}{3} | 0.666666
- | \frac{1}{3} | 0.33
- | \frac{1}{3} | 0.3
- | \frac{1}{3} | 0.333334
- | \frac{2}{3} | 0.666665
+ | \frac{7}{2} | 3\frac{1}{2}
+ | \frac{7}{2} | 3 1/2
+ | 3\frac{1}{2} | \frac{7}{2}
+ | 3\frac{1}{2} | 3.5
- | 3\frac{1}{2} | \frac{3}{2}
- | 0.0000001 | 0.0000002
+ | 0.0000001 | 1 \times 10^{-7}
- | 3.14 | 3.15
- | 3.14 | 3.14159
- | 2.5 | 2.50001
+ | 2.50 | 2.5
- | 0.125 | 0.13
+ | \frac{22}{7} | 22/7
- | \frac{22}{7} | 3.14
+ | 0.1 | 1/10
# powers of ten
+ | 1500 | 1.5 \times 10^3
+ | 1500 | 1.5e3
+ | 1.5 \times 10^{3} | 1500
+ | 3 \cdot 10^8 | 300000000
- | 1.5 \times 10^{3} | 1.5 \times 10^{4}
+ | 6.02 \times 10^{-3} | 0.00602
# percent
+ | 50 | 50\%
+ | 50\% | 50
+ | 50\% | 50%
+ | 50\% | 50 percent
+ | 50\% | 0.5
+ | 0.5 | 50\%
+ | \frac{1}{2} | 50%
- | 50\% | 5\%
- | 50\% | 0.05
- | 0.5 | 0.5\%
- | 25 | 50\%
+ | 50 | 5000\%
# units
+ | 5 | 5 cm
+ | 5 | 5\text{ cm}
+ | 5\text{ cm} | 5
+ | 5\text{ cm} | 5 centimeters
+ | 5\text{ cm} | 5\,\mathrm{cm}
+ | 5\text{ cm} | 0.05 m
- | 5\text{ cm} | 5 m
- | 5\text{ cm} | 5 kg
- | 5\text{ cm} | 6 cm
+ | 12 | 12 apples
+ | 12 | 12\text{ apples}
+ | 24 \text{ cm}^2 | 24
+ | 24 \text{ cm}^2 | 24 square centimeters
- | 24 \text{ cm}^2 | 24 cm
+ | 60 \text{ mph} | 60 miles per hour
+ | 90 | 90^\circ
+ | 90^\circ | 90
+ | 90^{\circ} | 90 degrees
+ | 18 | \$18
+ | 18 | $18
+ | 18 | 18 dollars
+ | \$18 | 18.00
+ | \$0.50 | 50 cents
- | 18 | \$18.50
+ | 2 hours | 120 minutes
- | 2 hours | 2 minutes
+ | 3 | 3 years old
# words and choices
+ | \text{Monday} | Monday
+ | Monday | \text{monday}
- | Monday | Tuesday
+ | \text{even} | even
- | \text{even} | neve
- | \text{odd} | even
+ | Yes | yes
+ | Yes | Yes, it does
- | No | Yes
- | Yes | No
+ | True | \text{True}
+ | 6:30 \text{ p.m.} | 6:30 pm
+ | \text{the blue car} | blue car
- | \text{red} | blue
+ | B | (B)
+ | B | B
+ | B | \text{(B)}
+ | B | \textbf{(B)}
+ | (B) | B.
+ | B | (B) 12
+ | B | B) 12
+ | B | Option B
+ | B | b
- | B | C
- | B | A, B
- | B | (A) or (B)
- | B | A and B
- | B | 8
# lists, sets, points, intervals
+ | 1, 2 | 2, 1
+ | 1, 2 | \{1, 2\}
+ | \{1, 2\} | \{2, 1\}
+ | 1, 2 | 1 and 2
+ | 1, 2 | 1 \text{ and } 2
+ | 1, 2 | x = 1 or x = 2
+ | -1, 1 | \pm 1
+ | \{1,2,3\} | 1, 2, 3
- | 1, 2 | 1
- | 1, 2 | 1, 2, 3
- | 1, 2 | 1, 3
- | 1, 1 | 1, 2
+ | (1, 2) | (1,2)
+ | (1, 2) | \left( 1, 2 \right)
+ | (1, 2) | (1.0, 2.0)
+ | (1, 2) | x = 1, y = 2
- | (1, 2) | (2, 1)
- | (2, 1) | (3, 1)
- | (1, 2) | [1, 2]
+ | [1, 2) | [1, 2)
- | [1, 2) | (1, 2]
- | [1, 2) | [1, 2]
+ | (-\infty, 2) | (-\infty, 2)
+ | (-\infty, 2) | (-∞, 2)
+ | (-\infty, 1) \cup (2, \infty) | (2, \infty) \cup (-\infty, 1)
- | (-\infty, 1) \cup (2, \infty) | (-\infty, 1) \cup [2, \infty)
+ | (\frac{1}{2}, 3) | (0.5, 3)
+ | x=3, y=4 | y=4, x=3
- | x=3, y=4 | x=4, y=3
+ | (1,2,3) | (1, 2, 3)
- | (1,2,3) | (3, 2, 1)
+ | \{5\} | 5
# formulas
+ | 2x + 1 | 1 + 2x
+ | 2x + 1 | 2x+1
+ | (x+1)^2 | x^2 + 2x + 1
+ | x^2 - 1 | (x-1)(x+1)
- | x^2 - 1 | (x-1)^2
- | 2x + 1 | 2x - 1
- | 2x + 1 | 2y + 1
+ | y = 2x + 1 | 2x + 1
+ | y = 2x + 1 | y = 1 + 2x
+ | 2x + 1 | y = 2x + 1
+ | \sqrt{2} | \sqrt2
+ | \sqrt{8} | 2\sqrt{2}
+ | 2\sqrt{2} | \sqrt{8}
+ | \sqrt{2} | 1.41421356
- | \sqrt{2} | 1.41
- | \sqrt{2} | 1.41422
- | \sqrt{2} | \sqrt{3}
+ | \frac{\sqrt{2}}{2} | \frac{1}{\sqrt{2}}
+ | \pi | π
+ | \pi | 3.14159265
- | \pi | 3.14
- | \pi | \frac{22}{7}
+ | 2\pi | 2 \cdot \pi
+ | 4\pi r^2 | 4 \pi r^{2}
+ | \frac{\pi}{4} | \pi/4
- | \frac{\pi}{4} | \frac{\pi}{2}
+ | e^{2x} | e^{x} \cdot e^{x}
+ | \log_2 8 + x | x + 3
+ | 3 + 4i | 4i + 3
- | 3 + 4i | 3 - 4i
+ | x > 3 | x > 3
+ | x > 3 | 3 < x
+ | x > 3 | (3, \infty)
- | x > 3 | x \ge 3
- | x > 3 | x < 3
+ | x \le 2 | x \leq 2
+ | 2^{10} | 1024
+ | 1011_2 | 1011
+ | 2516_8 | 2516_{8}
- | 1011_2 | 1101_2
+ | \begin{pmatrix} 1 \\ 2 \end{pmatrix} | \begin{pmatrix} 1 \\ 2 \end{pmatrix}
- | \begin{pmatrix} 1 \\ 2 \end{pmatrix} | \begin{pmatrix} 2 \\ 1 \end{pmatrix}
- | ab | a + b
+ | n(n+1)/2 | \frac{n(n+1)}{2}
+ | \sin^2 x + \cos^2 x + y | y + 1
- | x = 3 | y = 3
# more of everything
+ | \frac{3}{4} | 3/4
+ | x^2+2x+1 | (x+1)^2
- | x | y
+ | \text{(A)} | A
+ | 2,4,6 | \{6,4,2\}
- | (2,1) | (3,1)
- | \emptyset | 0
+ | \emptyset | \varnothing
+ | \text{no solution} | no solution
+ | \text{no solution} | \text{No solutions}
+ | \infty | +\infty
+ | -\infty | - \infty
- | \infty | -\infty
- | 5 | |-5|
+ | \frac{1}{x} | x^{-1}
+ | f(x) = x^2 | x^2
+ | f(x) = x^2 | f(x) = x \cdot x
- | f(x) = x^2 | g(x) = x^2
+ | x^2+y^2=4 | y^2 + x^2 = 4
+ | x^2+y^2=4 | 4 = x^2+y^2
- | x^2+y^2=4 | 4
- | x^2+y^2=4 | x^2+y^2=5
+ | [0, 1] | 0 \le x \le 1
+ | 0 \le x \le 1 | [0,1]
+ | x \in [0,1] | [0,1]
+ | (0,1) | 0 < x < 1
- | (0,1) | 0 \le x < 1
+ | \frac{5\pi}{6} | 150^\circ
+ | \frac{1}{\sqrt{3}} | \frac{\sqrt{3}}{3}
+ | 3^{1/3} | \sqrt[3]{3}
+ | \sqrt[3]{2} | 2^{\frac{1}{3}}
+ | \ln(2) | \ln 2
- | abc | bac1
+ | abc | cba
+ | C | C
- | act | cat
+ | 10! | 10!
+ | \binom{5}{2} | 10
+ | 2^{10} | 2^{10}
- | 2^{10} | 2^{11}
+ | 1+\sqrt{3}, 1-\sqrt{3} | 1 \pm \sqrt{3}
+ | 1 \pm \sqrt{3} | 1-\sqrt{3}, 1+\sqrt{3}
+ | \{-1, 0, 1\} | -1, 0, 1
- | \{-1, 0, 1\} | (1, 0, -1)
+ | 3:2 | 3:2
+ | 3:2 | 3 : 2
- | 3:2 | 2:3
+ | 1:2 | \frac{1}{2}
+ | (x-2)(x+3) | (x+3)(x-2)
+ | -x+1 | 1-x
+ | \frac{x+1}{2} | \frac{1}{2}x + \frac12
+ | 0.5x | \frac{x}{2}
+ | 1.5 | \frac{3}{2}
+ | \left(\frac{1}{2}, -3\right) | (\frac12,-3)
+ | 2\sqrt{3}+1 | 1+2\sqrt{3}
+ | 4.464101615 | 2\sqrt{3}+1
+ | 36^\circ | 36
+ | \sin(30^\circ) | \frac{1}{2}
+ | a=1,b=2 | b=2, a=1
+ | 2 \text{ and } 3 | 2, 3
+ | 100\pi | 100 \pi \text{ cm}^2
+ | 100\pi \text{ cm}^2 | 100\pi
+ | x = 5 | 5
+ | x=\frac{1}{2} | 0.5
- | 1 | 1 = 2 = 3
- | 2 | x = 2 = 3
- | \frac{1}{2} | \frac{1}{2} + \frac{0}{1}
- | \sqrt{4}x | 2
+ | 2x | \sqrt{4}x
- | x+1 | x+1 or x+2
- | 7 | not 7
- | 7 | anything
- | 2\pi | 6.28
- | x | \text{x or anything}
+ | \$32{,}348 | 32348
+ | 32{,}348 | \$32,348.00
+ | \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} | \begin{bmatrix} 1 & 2 \\ 3 & 4 \end{bmatrix}
+ | \begin{pmatrix} 1/2 & 2 \\ 3 & 4 \end{pmatrix} | \begin{pmatrix} 0.5 & 2 \\ 3 & 4 \end{pmatrix}
- | \begin{pmatrix} 1 & 2 \\ 3 & 4 \end{pmatrix} | \begin{pmatrix} 1 & 3 \\ 2 & 4 \end{pmatrix}
- | (-1, 2) | [-1,2]
- | 2,3 | (3,2)
- | 5 | -5 + 10
- | 12 | 1 2
- | 12 | 1.2e2
+ | (1,2), (3,4) | (3,4), (1,2)
+ | \{(1,2), (3,4)\} | (1,2), (3,4)
- | (1,2), (3,4) | (2,1), (3,4)
+ | 8\% | 0.08
+ | 3\sqrt{5} \text{ units} | 3\sqrt5
+ | x<-1 \text{ or } x>2 | x > 2 or x < -1
+ | (-\infty,-1)\cup(2,\infty) | x < -1 or x > 2
+ | \dfrac{9}{2} \text{ square units} | 4.5
+ | k = -1 | -1
# in the style of competition and textbook answers
+ | 10,\!080 | 10080
+ | 10080 | 10,\!080
+ | \frac 59 | \frac{5}{9}
+ | \text{June 20} | June 20
+ | \text{June 20} | \text{June 20}
- | \text{June 20} | June 21
+ | 5.4 \text{ cents} | 5.4
+ | (3, \frac{\pi}{2}) | \left( 3, \frac{\pi}{2} \right)
+ | (3, \frac{\pi}{2}) | (3, \pi/2)
- | (3, \frac{\pi}{2}) | (\frac{\pi}{2}, 3)
+ | 6 - 5i | -5i + 6
+ | p - q | -q + p
+ | \text{Evelyn} | Evelyn
+ | 4210_{5} | 4210_5
+ | 4210_5 | 4210
+ | x \in [-2,7] | [-2, 7]
+ | (0,9) \cup (9,36) | (0, 9) \cup (9, 36)
+ | \begin{pmatrix} -7 \\ 16 \\ 5 \end{pmatrix} | \begin{pmatrix}-7\\16\\5\end{pmatrix}
+ | 1,-2 | -2, 1
+ | \frac{1}{2}, \frac{1}{3} | 1/3, 1/2
+ | A,B | B, A
- | A,B | A, C
+ | 0.0\overline{6} | \frac{1}{15}
+ | 2^{1009} | 2^{1009}
- | 2^{1009} | 2^{1008}
+ | $(1,2),(2,1)$ | (2,1), (1,2)
+ | 4.5e33 | 4.5 \times 10^{33}
+ | (x, y) = (1, 2) | (1, 2)
+ | (1, 2) | (x, y) = (1, 2)
+ | 7 | f(2) = 7
+ | 60 | \angle ABC = 60^\circ
+ | 60^\circ | m\angle A = 60
+ | 12 | Area = 12
+ | 12 | \text{Area} = 12 \text{ square units}
+ | 2, 3 | x = 2 \text{ or } 3
+ | 3\sin x | 3 \sin(x)
+ | \tan x | \frac{\sin x}{\cos x}
+ | 142.0 | 142
+ | 3 | \mathbf{3}
+ | \frac{3\sqrt{3}}{4} | \frac{3}{4}\sqrt{3}
+ | \sqrt{x^2+1} | (x^2+1)^{1/2}
- | \sqrt{x^2+1} | x+1
+ | 20\% | \frac{1}{5}
- | \frac{1}{5} | 5
- | -1 | 1
+ | 0.75 | 75\%
+ | \text{North} | north
+ | 1:30 | 1:30
- | 1:30 | 1:45
+ | \frac{a+b}{2} | (a+b)/2
- | \frac{a+b}{2} | a+b/2
+ | 2n^2 | 2 n^{2}
+ | n! | n!
- | n! | n
+ | \lfloor x \rfloor | \lfloor x \rfloor
+ | 5x^2 | 5 \cdot x \cdot x
+ | 12\text{ ways} | 12
+ | 1/4 | 25\%
+ | 5\frac{3}{4} | 5.75
+ | 10\sqrt{3} | 10\sqrt{3}\text{ cm}
- | 10\sqrt{3} | 10\sqrt{2}\text{ cm}
+ | 8 | \text{8 apples}
+ | 8 | \text{The answer is } 8
+ | 8 | 8 \quad
+ | 8 | {8}
+ | 3 | \approx 3
+ | \frac{5}{2} | 2 \frac{1}{2}
- | 5 | 5 \text{ or } 6
- | 5 | 5, 5, 6
- | 16 | 4^2
- | 5 | five hundred
- | 2 | \text{two or three}
- | 4 | 4\sqrt{2}
- | 4 | 4 + i
# where the answer stands
+ | 7 | First \boxed{6}, no: \boxed{7}
- | 7 | First \boxed{7}, no: \boxed{6}
+ | 7 | The answer is 7.
+ | 7 | So the answer is $7$ apples.
+ | 7 | **Answer:** 7
+ | 1/2 | Final answer: $\frac{1}{2}$
+ | 7 | 3 + 4 = 7\n#### 7
+ | 1234 | Thus we get\n#### 1,234
- | 7 | #### 8
+ | 7 | We add 3 and 4 and get 7
+ | 7 | We add 3 and 4 and get 7.
- | 7 | We add 7 and 1 and get 8
- | 7 | I do not know.
- | 7 | \boxed{}
+ | 2.5 | It takes 2.5 hours.
"""


DISAGREEMENTS = {
    # Words are compared as words, so a product of letters that spells one must stand in the same order.
    ("abc", r"So it is \boxed{cba}."),
    # The grammar keeps degrees and radians apart only where the whole answer is an angle.
    (r"\sin(30^\circ)", r"So it is \boxed{\frac{1}{2}}."),
}
"""Where the verifier differs from the person; docs/maths.md lists these too."""

LIBRARY_WRONG = [
    # gold, response, what the bare library says, why the opposite is right
    ("7", r"\boxed{3 + 4}", True, "arithmetic the question asked for was not carried out"),
    ("7", r"\boxed{14/2}", True, "the same, written as a division"),
    ("0.0000001", r"\boxed{0.0000002}", True, "decimals are rounded to six places, whatever their size"),
    ("act", r"\boxed{cat}", True, "words are read as products of letters, which commute"),
    (r"5\text{ cm}", r"\boxed{5 m}", True, "units are thrown away"),
    (r"5\text{ cm}", r"\boxed{5 kg}", True, "units are thrown away"),
    (r"\{-1, 0, 1\}", r"\boxed{(1, 0, -1)}", True, "a point is no set"),
    ("2,3", r"\boxed{(3,2)}", True, "a point in another order is not the list"),
    ("7", r"First \boxed{6}, no: \boxed{7}", False, "several boxes become a set; the last one is the answer"),
    ("1500", r"\boxed{1.5e3}", False, "scientific notation with an e"),
    ("1234567", r"\boxed{1\,234\,567}", False, "thin spaces between thousands"),
    ("7", r"\boxed{\text{seven}}", False, "number words"),
    (r"\frac{1}{3}", r"\boxed{0.\overline{3}}", False, "repeating decimals"),
    (r"\frac{7}{2}", r"\boxed{3 1/2}", False, "mixed numbers without LaTeX"),
    ("B", r"\boxed{(B) 12}", False, "a choice with the value it stands for"),
    (r"\$0.50", r"\boxed{50 cents}", False, "the same amount in another unit"),
    ("Yes", r"\boxed{Yes, it does}", False, "a plain reply with an explanation"),
    ("[0, 1]", r"\boxed{0 \le x \le 1}", False, "an interval given as an inequality"),
    (r"(-\infty,-1)\cup(2,\infty)", r"\boxed{x < -1 or x > 2}", False, "a union given as inequalities"),
    (r"\emptyset", r"\boxed{\varnothing}", False, "two signs for the empty set"),
]


def labelled() -> list[tuple[bool, str, str]]:
    pairs = []
    for line in LABELLED.strip().splitlines():
        if line.startswith("#"):
            continue
        label, gold, response = (part.strip() for part in line.split(" | "))
        marked = any(mark in response for mark in (r"\boxed", "####", "nswer", "We add", "I do not", "It takes"))
        response = response.replace(r"\n####", "\n####")
        pairs.append((label == "+", gold, response if marked else rf"So it is \boxed{{{response}}}."))
    return pairs


@pytest.fixture(scope="module")
def verifier() -> Verifier:
    with VerifyPool() as pool:
        yield Verifier(pool=pool)


def test_agreement_with_a_careful_person(verifier):
    pairs = labelled()
    assert len(pairs) >= 300 and 0.3 < sum(right for right, _, _ in pairs) / len(pairs) < 0.7
    differ = {(gold, response) for right, gold, response in pairs if verifier.verify(gold, response).correct != right}
    assert differ == DISAGREEMENTS
    assert len(differ) <= 0.01 * len(pairs)


@pytest.mark.parametrize(("gold", "response", "library", "why"), LIBRARY_WRONG)
def test_wrong_verdicts_of_the_library_are_corrected(verifier, gold, response, library, why):
    assert math_verify.verify(math_verify.parse(f"${gold}$"), math_verify.parse(response)) is library, why
    assert verifier.verify(gold, response).correct is not library, why


@pytest.mark.parametrize("gold", sorted({gold for _, gold, _ in labelled()}))
def test_every_gold_answer_scores_against_itself(verifier, gold):
    assert verifier.verify(gold, rf"\boxed{{{gold}}}").reason == "match"
    assert verifier.verify(gold, f"The answer is ${gold.strip('$')}$.").reason == "match"


def test_reasons(verifier):
    def reason(gold, response):
        return verifier.verify(gold, response).reason

    assert reason("7", r"\boxed{7}") == "match"
    assert reason("7", r"\boxed{8}") == "mismatch"
    assert reason("7", "no idea") == "no_answer"
    assert reason("7", r"\boxed{\text{}}") == "unparsable"
    assert reason("x + 1", r"\boxed{\begin{cases} x \end}") == "unparsable"
    assert reason("x + 1", r"\boxed{9^{9^{9^{9}}}}") == "timeout"


@pytest.mark.parametrize("gold", ["", "  ", "$$", r"\frac{1}{2", "9" * 2000])
def test_unreadable_gold_is_named(gold):
    with pytest.raises(GoldError, match="unreadable gold answer"):
        read_gold(gold)


POLICIES = [
    # policy, gold, response, verdict
    (Policy("value"), "0.5", "50%", True),
    (Policy("value"), "50", "50%", False),
    (Policy("value"), "50%", "50", False),
    (Policy("unit"), "50", "50%", True),
    (Policy("unit"), "0.5", "50%", False),
    (Policy("unit"), "50%", "0.5", False),
    (Policy("either"), "0.5", "0.5%", False),
    (Policy(unevaluated=True), "7", "14/2", True),
    (Policy(unevaluated=True), "7", "3 + 4", True),
    (Policy(unevaluated=True), "7", "3 + 5", False),
]


@pytest.mark.parametrize(("policy", "gold", "answer", "verdict"), POLICIES)
def test_policies(verifier, policy, gold, answer, verdict):
    assert Verifier(policy, pool=verifier.pool).verify(gold, rf"\boxed{{{answer}}}").correct is verdict


def test_unknown_policy_is_refused():
    with pytest.raises(ValueError, match="choose from either, value, unit"):
        Policy("both")


def test_the_process_and_the_worker_give_the_same_verdict(verifier):
    """The worker runs the comparison from the start, so asking it directly must agree wherever no algebra is needed."""
    for _, gold, response in labelled():
        found = extract(response)
        verdict = verifier.verify(gold, response)
        if found is not None and verdict.reason in ("match", "mismatch"):
            assert verifier.pool.compare(gold, found.text, verifier.policy) == verdict.reason, (gold, response)


rationals = st.fractions(max_denominator=10**6).filter(lambda q: abs(q) < 10**9)


@given(rationals, rationals)
@settings(deadline=None)
def test_fractions_match_exactly_when_they_are_equal(gold, given_):
    def spellings(q):
        yield str(q)
        yield rf"\frac{{{q.numerator}}}{{{q.denominator}}}" if q.denominator > 1 else f"{q.numerator:,}"
        yield rf"-\frac{{{-q.numerator}}}{{{q.denominator}}}" if q < 0 and q.denominator > 1 else f"${q}$"

    for wanted in spellings(gold):
        for answer in spellings(given_):
            assert Verifier().verify(wanted, rf"\boxed{{{answer}}}").correct == (gold == given_)
        for answer in spellings(gold):
            assert Verifier().verify(wanted, rf"\boxed{{{answer}}}").correct


@given(st.integers())
@settings(deadline=None)
def test_the_short_cut_for_integers_reads_what_the_long_way_reads(value):
    assert read(f"{value}") == read(f"${value}$") == Number(Fraction(value))


@given(rationals, st.integers(6, 12))
@settings(deadline=None)
def test_a_decimal_matches_what_it_rounds(value, places):
    with decimal.localcontext() as context:
        context.prec = 60
        exact = decimal.Decimal(value.numerator) / decimal.Decimal(value.denominator)
        rounded = exact.quantize(decimal.Decimal(1).scaleb(-places), rounding=decimal.ROUND_HALF_EVEN)
        beside = rounded + 2 * decimal.Decimal(1).scaleb(-places)
    digits = len(str(abs(rounded)).replace(".", "").lstrip("0"))
    if digits >= 6 or Fraction(rounded) == value:
        assert Verifier().verify(str(value), rf"\boxed{{{rounded:f}}}").correct
    assert not Verifier().verify(str(value), rf"\boxed{{{beside:f}}}").correct


@given(st.text(max_size=60), st.sampled_from(["7", "1/2", "x + 1", "(1, 2)", "B", "Monday"]))
@settings(deadline=None, max_examples=300)
def test_any_text_gets_a_verdict(text, gold):
    verdict = Verifier(pool=Refusing()).verify(gold, rf"\boxed{{{text}}}")
    assert verdict.reason in ("match", "mismatch", "no_answer", "unparsable")


class Refusing:
    """Stands in for the pool where only the in-process part is under test."""

    def compare(self, gold, prediction, policy):
        return "mismatch"


@given(st.text(alphabet="0123456789.,-/ {}()[]\\frac%$^_xeand", max_size=40))
@settings(deadline=None, max_examples=500)
def test_reading_is_stable_under_its_own_spelling(text):
    """What is read as a number is read as the same number when its one spelling is read again."""
    try:
        answer = read(text)
    except Unreadable:
        return
    if isinstance(answer, Number) and not answer.base:
        again = read(canonical(answer))
        assert isinstance(again, Number) and again.value == answer.value and again.percent == answer.percent
