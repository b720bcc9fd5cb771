"""How well speculation went for one request: vLLM's block `metrics.speculative_decoding`."""

from __future__ import annotations

import itertools
from typing import Any

from eagle31rt.outputs import RequestMetrics


def speculation_block(metrics: RequestMetrics) -> dict[str, Any]:
    """`acceptance_histogram[i]`: verifications that accepted exactly i drafts, i up to the draft length."""
    reached = [metrics.num_drafts, *metrics.num_accepted_tokens_per_position, 0]
    return {
        "mean_acceptance_length": metrics.acceptance_length,
        "draft_acceptance_rate": metrics.num_accepted_tokens / max(metrics.num_draft_tokens, 1),
        "acceptance_histogram": [here - further for here, further in itertools.pairwise(reached)],
        "num_spec_steps": metrics.num_drafts,
        "num_accepted_draft_tokens": metrics.num_accepted_tokens,
        "num_draft_tokens": metrics.num_draft_tokens,
        "num_spec_tokens": len(metrics.num_accepted_tokens_per_position),
    }
