"""Maths problems, generated or from data sets, with a verifier and a calculator tool."""
