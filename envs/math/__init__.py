"""Maths problems with a verifier: generated families or any data set, a calculator tool, several attempts.

Modules of this package import each other absolutely (``from gagpo.envs.math.calculator import ...``), so that
``import math`` always means the standard library's.
"""
