"""eagle31rt: LLM inference with EAGLE-3.1 speculative decoding; token ids are bit-for-bit those of plain decoding."""

from __future__ import annotations

from typing import TYPE_CHECKING

__version__ = "0.1.0"

if TYPE_CHECKING:
    from eagle31rt.async_llm import AsyncLLM
    from eagle31rt.errors import Eagle31rtError
    from eagle31rt.llm import LLM
    from eagle31rt.logprobs import Logprob
    from eagle31rt.outputs import CompletionOutput, RequestOutput
    from eagle31rt.sampling_params import RequestOutputKind, SamplingParams
    from eagle31rt.structured_outputs import StructuredOutputsParams

__all__ = [
    "LLM",
    "AsyncLLM",
    "CompletionOutput",
    "Eagle31rtError",
    "Logprob",
    "RequestOutput",
    "RequestOutputKind",
    "SamplingParams",
    "StructuredOutputsParams",
    "__version__",
]

_LAZY = {
    "AsyncLLM": "eagle31rt.async_llm",
    "Eagle31rtError": "eagle31rt.errors",
    "LLM": "eagle31rt.llm",
    "Logprob": "eagle31rt.logprobs",
    "SamplingParams": "eagle31rt.sampling_params",
    "RequestOutputKind": "eagle31rt.sampling_params",
    "StructuredOutputsParams": "eagle31rt.structured_outputs",
    "CompletionOutput": "eagle31rt.outputs",
    "RequestOutput": "eagle31rt.outputs",
}


def __getattr__(name: str) -> object:
    # Loaded on first use: `eagle31rt --help` should not pay for numpy and the tokenizer.
    if name in _LAZY:
        from importlib import import_module

        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'eagle31rt' has no attribute {name!r}")
