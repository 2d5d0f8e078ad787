"""Ops choose their own precision: autocast stays outside."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def without_autocast(device: torch.device) -> AbstractContextManager[object]:
    """Inside, matrix products keep the dtype of their inputs, whatever the caller's autocast says."""
    available = torch.amp.is_autocast_available(device.type)
    if not available or not torch.is_autocast_enabled(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
