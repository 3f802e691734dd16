"""How large a topology may be in processes; for whoever has no YAML (``limits``)."""

from __future__ import annotations

MOST_MEMBERS = 64
"""As many state servers as a topology may ask for, and as many ackers."""
