"""What this package's launcher adds to torchrun's variables (:mod:`gagpo.base.rank`), and the exit status of a rank."""

from __future__ import annotations

LOST = 75
"""Exit status of a rank that ends because another is gone."""

PARENT = "GAGPO_PARENT"
"""Environment variable with the id of the launcher; a rank ends when that process is gone."""
