"""Places and environment variables that eagle31rt reads. Everything else is configured by arguments.

huggingface_hub reads the HF_* ones, of which it knows more.
"""

from __future__ import annotations

import os
from pathlib import Path

ENVIRONMENT_VARIABLES: dict[str, str] = {
    "EAGLE31RT_API_KEY": "key that `eagle31rt serve` requires of requests (instead of --api-key, which others can see)",
    "EAGLE31RT_CACHE": "folder for converted models (instead of XDG_CACHE_HOME/eagle31rt)",
    "EAGLE31RT_CPU_ISA": "forces an instruction set of the CPU operators (for tests)",
    "EAGLE31RT_CUDA_LIBRARY": "path of the CUDA backend (instead of libeagle31rt_cuda.so in the package)",
    "HF_HOME": "folder of huggingface_hub: models fetched by hub id",
    "HF_HUB_OFFLINE": "1: use fetched models only, never the network",
    "HF_TOKEN": "token for gated and private models of the hub",
    "XDG_CACHE_HOME": "base of the cache folder (~/.cache if unset)",
}


def cache_folder() -> Path:
    """Where converted models are kept; not created here."""
    explicit = os.environ.get("EAGLE31RT_CACHE")
    if explicit:
        return Path(explicit).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base).expanduser() if base else Path.home() / ".cache") / "eagle31rt"


def server_api_key() -> str | None:
    return os.environ.get("EAGLE31RT_API_KEY") or None


def shown_value(name: str) -> str | None:
    """The variable's value for people to read; secrets are not shown."""
    value = os.environ.get(name)
    return "(set)" if value and name.endswith(("_KEY", "_TOKEN")) else value
