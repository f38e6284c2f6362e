"""Attention over a flat token axis: packed rows, prefix trees and caches."""
