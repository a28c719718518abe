"""Settings that every test shares."""

from __future__ import annotations

import os

from hypothesis import settings

# A loaded machine makes any one example slow, which says nothing about the code.
settings.register_profile("local", deadline=None, print_blob=True)
settings.register_profile("ci", deadline=None, print_blob=True, derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")
