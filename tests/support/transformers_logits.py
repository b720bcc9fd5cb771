"""What transformers computes from a checkpoint in float32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest


def transformers_logits(directory: Path, token_ids: list[int], **options: Any) -> np.ndarray:
    """Logits [tokens, vocab] of a plain forward pass; `options` are of from_pretrained. Every tensor must be used."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model, info = transformers.AutoModelForCausalLM.from_pretrained(
        directory,
        dtype=torch.float32,
        attn_implementation="eager",
        local_files_only=True,
        output_loading_info=True,
        **options,
    )
    assert not info["missing_keys"] and not info["unexpected_keys"] and not info["mismatched_keys"], info
    with torch.no_grad():
        logits: np.ndarray = model.eval()(torch.tensor([token_ids])).logits[0].numpy()
    return logits
