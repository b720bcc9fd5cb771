"""Type stubs of the C++ module. Shapes and units: csrc/include/eagle31rt/."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

class EngineConfig:
    model: str
    draft: str  # "" = no draft
    dtype: str  # auto | float32 | bfloat16 | float16
    kv_cache_dtype: str  # auto (= dtype) | float32 | bfloat16 | float16
    page_size: int  # tokens a KV page
    max_model_len: int  # 0 = from the model
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache_memory_bytes: int  # 0 = chosen
    enable_prefix_caching: bool  # requests share the KV pages of equal beginnings
    num_threads: int  # 0 = physical cores
    device: str  # cpu | cuda | cuda:N
    gpu_memory_utilization: float  # (0, 1]
    enforce_eager: bool  # no graphs
    kept_features_memory_bytes: int  # -1: an eighth of the target's KV cache
    decode_state: str  # auto | host | device
    num_speculative_tokens: int  # upper bound K, 0..16, with trees 0..64
    tree_top_k: int  # 0 or 1 = chains
    tree_depth: int  # 0 = up to 8
    speculative_token_tree: list[list[int]]
    rejection_sample_method: str  # equality | standard | block | synthetic
    speculation_policy: str  # fixed | auto
    draft_sample_method: str  # greedy | probabilistic
    synthetic_acceptance_rates: list[float]  # unconditional, non-increasing, one per position
    capture_layers: list[int]  # canonical k, empty = from the draft's config
    layer_id_convention: str  # "" | residual_index | layer_output
    feedback: str  # auto | pre | post
    profile: bool  # collect the time breakdown
    def __init__(self) -> None: ...

def draft_rules() -> list[dict[str, str]]: ...  # rule, check, fix; in order

# loads, findings, resolved: the keys of `eagle31rt check --json` (docs/doctor.md). Raises nothing for broken folders.
def examine_draft(
    target: str,
    draft: str,
    capture_layers: Sequence[int] = ...,
    layer_id_convention: str = "",
    feedback: str = "auto",
    max_model_len: int = 0,
    num_speculative_tokens: int = 0,
) -> dict[str, Any]: ...

class SamplingParams:
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    seed: int  # always set by the caller; 64 bits
    max_tokens: int
    min_tokens: int
    ignore_eos: bool
    stop_token_ids: list[int]
    stop: list[str]  # needs an engine with a token table
    include_stop_str_in_output: bool
    skip_special_tokens: bool
    detokenize: bool
    num_speculative_tokens: int  # -1 = the engine's
    repetition_penalty: float
    frequency_penalty: float
    presence_penalty: float
    logit_bias: dict[int, float]
    allowed_token_ids: list[int]  # [] = all
    bad_words: list[list[int]]
    num_logprobs: int  # -1 = none, 0 = of the token itself
    num_prompt_logprobs: int
    constraint: TokenConstraint | None
    # (prompt ids, output ids, writable float32 logits [vocab_size]) -> None, or the logits to take instead
    logits_processors: Sequence[Callable[[list[int], list[int], npt.NDArray[np.float32]], Any]]
    def __init__(self) -> None: ...

class RequestOptions:
    priority: int  # lower runs first
    timeout_seconds: float  # 0 = none; then finish_reason "abort"
    def __init__(self) -> None: ...

class TokenTable:
    """What each id says; fields: csrc/include/eagle31rt/token_table.h."""

    # is_special: one entry for each of bytes, or none
    def __init__(self, bytes: list[bytes], is_special: list[bool], num_leading_spaces_dropped: int) -> None: ...

class TokenConstraint(Protocol):
    """What SamplingParams.constraint must have: csrc/include/eagle31rt/token_constraint.h."""

    def fill_mask(self, allowed: npt.NDArray[np.uint32]) -> None: ...
    def accept(self, token_id: int) -> bool: ...
    def roll_back(self, num_tokens: int) -> None: ...
    def is_finished(self) -> bool: ...

class TokenLogprobs:
    token_id: int
    logprob: float
    rank: int  # 1 = most probable; 0 = no value
    top_ids: list[int]
    top_logprobs: list[float]

class SpeculationMetrics:
    num_drafts: int
    num_draft_tokens: int
    num_accepted_tokens: int
    num_accepted_tokens_per_position: list[int]

class StepOutput:
    request_id: int
    new_token_ids: list[int]
    logprobs: list[TokenLogprobs]  # one for each new id, if asked for
    prompt_logprobs: list[TokenLogprobs]  # with the output in which the prompt ends
    finish_reason: str  # "" while running; stop | length | abort | error
    stop_token_id: int  # which id ended it, for stop; else -1
    text: str  # what the ids complete; "" without a token table
    stop_string: str  # which stop string ended it, for stop; else ""
    error: str  # why, if finish_reason is error
    metrics: SpeculationMetrics  # totals so far
    num_cached_tokens: int  # prompt tokens that the prefix cache served
    first_run_at: float  # when a step first took it in: seconds of time.monotonic()

class Engine:
    def __init__(self, config: EngineConfig) -> None: ...
    def add_request(
        self,
        request_id: int,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        options: RequestOptions = ...,
    ) -> None: ...
    # Raises what add_request would, but for a request_id in use; from any thread.
    def check_request(
        self, prompt_token_ids: Sequence[int], params: SamplingParams, options: RequestOptions = ...
    ) -> None: ...
    def set_token_table(self, table: TokenTable) -> None: ...  # before the first request
    def cancel(self, request_id: int) -> bool: ...
    def has_unfinished_requests(self) -> bool: ...
    def step(self) -> list[StepOutput]: ...
    # The same, with the outputs appended to outbox[request_id]; no signal handler runs between step and outbox.
    def step_into(self, outbox: dict[int, list[StepOutput]]) -> None: ...
    def step_simple(self) -> list[StepOutput]: ...
    # Replaces the draft between two steps; ids stay. If the new one is refused, the old one stays.
    def swap_draft(self, directory: str) -> None: ...
    def check(self) -> None: ...  # raises InternalError on a broken invariant
    @property
    def info(self) -> dict[str, Any]: ...
    # info keys: device, instruction_set, num_threads, vocab_size, max_model_len, page_size, num_pages, num_free_pages,
    # weight_bytes, draft_weight_bytes, kv_cache_bytes, target_kv_bytes, draft_kv_bytes, logits_bytes, eos_token_ids,
    # capture_layers, capture_rule, dtype, kv_cache_dtype, draft_vocab_size, num_speculative_tokens
    @property
    def stats(self) -> dict[str, int]: ...
    # stats keys: num_running, num_waiting, num_preemptions, num_pages, num_used_pages, num_cached_pages,
    # prefix_cache_queries, prefix_cache_hits (tokens); {draft, verify, sample, host}_nanoseconds;
    # num_{fixed, no_draft, plain, best, probe, back_off}_steps
    def profile(self) -> dict[str, int]: ...  # nanoseconds by kind of work and number of steps, since the last call

class AsyncEngine:
    """An engine with a thread of its own; what each call promises: csrc/include/eagle31rt/async_engine.h."""

    def __init__(self, config: EngineConfig, token_table: TokenTable | None = None) -> None: ...
    # Any thread. Raises what Engine.add_request would, or the error that ended the engine.
    def submit(
        self,
        request_id: int,
        prompt_token_ids: Sequence[int],
        params: SamplingParams,
        options: RequestOptions = ...,
    ) -> None: ...
    def cancel(self, request_id: int) -> bool: ...  # True if it was there: then it yields nothing more
    # One thread at a time. Empty after the timeout (0 = at once, math.inf = never), or when nothing can come any more.
    def wait_outputs(self, timeout_seconds: float) -> list[StepOutput]: ...
    @property
    def info(self) -> dict[str, Any]: ...  # as Engine.info, as of the last step
    @property
    def stats(self) -> dict[str, int]: ...  # as Engine.stats, as of the last step
    @property
    def is_running(self) -> bool: ...  # False once it has ended and all outputs were taken
    # Runs on the engine's thread between two steps and returns when it has; what it raises is raised here.
    def run_between_steps(self, function: Callable[[Engine], None]) -> None: ...
    def shutdown(self) -> None: ...  # running requests end with finish_reason abort; also done at exit

class FeatureExtractor:
    """Captured states of a target, the bits that an engine feeds its draft."""

    # capture_layers: ascending k of the residual streams R_k; max_tokens: of the longest; num_threads 0 = cores
    def __init__(
        self, model: str, capture_layers: Sequence[int], max_tokens: int, num_threads: int = 0, device: str = "cpu"
    ) -> None: ...
    # token_ids [sum(lengths)], sequence after sequence -> [sum(lengths), len(capture_layers) * hidden_size]
    def extract(self, token_ids: Sequence[int], lengths: Sequence[int]) -> npt.NDArray[np.float32]: ...

# What csrc/model/memory_plan.h says, from configs and headers. max_model_len 0: the model's. target and draft: for each
# size, weights (bytes by kind), weight_bytes, kv_bytes_per_token, activation_bytes; besides target_file_bytes,
# draft_file_bytes, dtype, kv_cache_dtype, max_model_len, vocab_size, sizes (planned) and left_out (size -> why; empty
# unless leave_out, without which such a size raises InvalidArgumentError).
def plan_memory(
    target: str,
    draft: str,
    tensor_parallel_sizes: list[int],
    leave_out: bool,
    max_model_len: int,
    num_rows: int,
    dtype: str,
    kv_cache_dtype: str,
) -> dict[str, Any]: ...
def cpu_info() -> dict[str, object]: ...  # instruction_set, available_instruction_sets, num_physical_cores

# runtime_version, driver_version (13000 = CUDA 13.0, 0 = no driver), devices (name, compute_capability,
# num_multiprocessors, total_memory), problem (why there are none). Raises DeviceError without a CUDA backend.
def cuda_info() -> dict[str, Any]: ...
