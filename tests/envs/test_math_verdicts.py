r"""Gold answers and responses with the verdict a careful person gives, labelled by hand.

``+`` right, ``-`` wrong; the response is boxed unless it holds a mark of its own. The person reads the answer as a
marker of an examination would: value and form of the final answer count, spelling does not; arithmetic that the
question asked for must have been carried out.
"""

import pytest

from envs.math.verifier import Verifier

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
