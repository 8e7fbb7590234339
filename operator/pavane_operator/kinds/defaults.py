"""What the operator's own settings contribute to rendered objects, the same for all kinds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RenderDefaults:
    """Settings that renderers take, and record in the revision of a generation where they concern its pods."""

    image: str
    """Image of pods whose spec names none."""
    version: str
    """Of this release; label `app.kubernetes.io/version`."""
    otlp_endpoint: str | None
    """Where pods send spans; None = nowhere."""
    secret_key: bytes
    """Random, of this process: what generated secrets are derived from, so that rendering is a pure function."""
    platform_namespace: str
    """Where operator and control plane run: policies let their pods in."""
    otlp_audience: str | None = None
    """Audience of the token that pods send with their spans; None = they send none."""
