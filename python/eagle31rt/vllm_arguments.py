"""vLLM's arguments that LLM, AsyncLLM and their methods do not take: refused by name, unless they ask for nothing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle31rt.errors import UnsupportedError
from eagle31rt.sampling_checks import shown

_NOTHING: tuple[object, ...] = (None, False, "", {}, [])
_ONE_DEVICE = "this version runs a model on one device"
_OWN_WEIGHTS = "weights are read from safetensors as they are"
_TEXT_ONLY = "only text goes in"
_RAW_TEXT = "the server returns the model's text as it is"

# argument -> (values that ask for nothing, why others are refused)
ENGINE_ARGUMENTS: dict[str, tuple[tuple[object, ...], str]] = {
    # parallelism
    "tensor_parallel_size": ((None, 1), _ONE_DEVICE),
    "pipeline_parallel_size": ((None, 1), _ONE_DEVICE),
    "data_parallel_size": ((None, 1), "start one server for each device"),
    "decode_context_parallel_size": ((None, 1), _ONE_DEVICE),
    "prefill_context_parallel_size": ((None, 1), _ONE_DEVICE),
    "enable_expert_parallel": (_NOTHING, _ONE_DEVICE),
    "distributed_executor_backend": ((None, "uni"), _ONE_DEVICE),
    "disable_custom_all_reduce": ((None, False, True), _ONE_DEVICE),
    # weights
    "quantization": (_NOTHING, _OWN_WEIGHTS),
    "load_format": ((None, "auto", "safetensors"), _OWN_WEIGHTS),
    "model_loader_extra_config": (_NOTHING, _OWN_WEIGHTS),
    "config_format": ((None, "auto", "hf"), "the config is Hugging Face's config.json"),
    "hf_overrides": (_NOTHING, "edit config.json"),
    "hf_token": (_NOTHING, "set HF_TOKEN"),
    "hf_config_path": (_NOTHING, "config.json is read from the model's directory"),
    "code_revision": (_NOTHING, "no code of a model is run"),
    "tokenizer_revision": (_NOTHING, "give the tokenizer as a directory"),
    "trust_remote_code": ((None, False, True), "no code of a model is run"),  # True only permits what is not needed
    "tokenizer_mode": ((None, "auto", "hf", "fast"), "tokenizer.json is read by the tokenizers library"),
    "model_impl": ((None, "auto"), "there is one implementation of each model"),
    "download_dir": (_NOTHING, "set HF_HOME"),
    # adapters and other inputs and outputs
    "enable_lora": (_NOTHING, "merge the adapter into the weights"),
    "max_loras": ((None, 1), "merge the adapter into the weights"),
    "max_lora_rank": ((None, 16), "merge the adapter into the weights"),
    "lora_modules": (_NOTHING, "merge the adapter into the weights"),
    "enable_prompt_embeds": (_NOTHING, "give prompts as text or token ids"),
    "limit_mm_per_prompt": (_NOTHING, _TEXT_ONLY),
    "mm_processor_kwargs": (_NOTHING, _TEXT_ONLY),
    "allowed_local_media_path": (_NOTHING, _TEXT_ONLY),
    "task": ((None, "auto", "generate"), "models generate text here"),
    "runner": ((None, "auto", "generate"), "models generate text here"),
    "convert": ((None, "auto", "none"), "models generate text here"),
    "override_pooler_config": (_NOTHING, "models generate text here"),
    "pooler_config": (_NOTHING, "models generate text here"),
    "reasoning_parser": (_NOTHING, _RAW_TEXT),
    "tool_call_parser": (_NOTHING, _RAW_TEXT),
    "enable_auto_tool_choice": (_NOTHING, _RAW_TEXT),
    "enable_return_routed_experts": (_NOTHING, "expert ids are not reported"),
    "logits_processors": (_NOTHING, "give them with SamplingParams.logits_processors"),
    "logits_processor_pattern": (_NOTHING, "the server takes no logits processors"),
    "guided_decoding_backend": ((None, "auto", "guidance"), "structured outputs are compiled by llguidance"),
    "structured_outputs_config": (_NOTHING, "structured outputs are compiled by llguidance; leave it out"),
    "logprobs_mode": ((None, "raw_logprobs"), "log-probabilities are those of the model's own logits"),
    # memory and scheduling
    "swap_space": ((None, 0, 4), "preempted requests are recomputed"),
    "cpu_offload_gb": ((None, 0), "weights and KV stay on the device"),
    "kv_offloading_size": (_NOTHING, "weights and KV stay on the device"),
    "kv_transfer_config": (_NOTHING, "KV is not moved between engines"),
    "num_gpu_blocks_override": (_NOTHING, "use kv_cache_memory_bytes"),
    "calculate_kv_scales": (_NOTHING, "the KV cache is not quantised"),
    "disable_sliding_window": (_NOTHING, "a sliding window is the model's own"),
    "enable_chunked_prefill": ((None, True), "prompts longer than max_num_batched_tokens are always chunked"),
    "scheduling_policy": ((None, "fcfs", "priority"), "requests run by priority, then in order of arrival"),
    "scheduler_cls": (_NOTHING, "there is one scheduler"),
    "async_scheduling": (_NOTHING, "there is one scheduler"),
    "num_scheduler_steps": ((None, 1), "there is one scheduler"),
    "preemption_mode": ((None, "recompute"), "preempted requests are recomputed"),
    "max_seq_len_to_capture": ((None, 8192), "graphs are recorded by batch, for any length"),
    "max_num_partial_prefills": ((None, 1), "max_num_batched_tokens bounds prefills"),
    "max_long_partial_prefills": ((None, 1), "max_num_batched_tokens bounds prefills"),
    "long_prefill_token_threshold": ((None, 0), "max_num_batched_tokens bounds prefills"),
    "kv_events_config": (_NOTHING, "cache events are not published"),
    "enable_sleep_mode": (_NOTHING, "make a new engine"),
    # compilation and observation
    "compilation_config": ((None, {}, 0), "nothing is compiled at run time; enforce_eager=True switches graphs off"),
    "attention_backend": (_NOTHING, "there is one attention operator for each device"),
    "attention_config": (_NOTHING, "there is one attention operator for each device"),
    "generation_config": ((None, "auto", "vllm"), "parameters are given with each request"),
    "override_generation_config": (_NOTHING, "parameters are given with each request"),
    "worker_cls": (_NOTHING, "there are no workers"),
    "worker_extension_cls": (_NOTHING, "there are no workers"),
    "additional_config": (_NOTHING, "there are no plugins"),
    "otlp_traces_endpoint": (_NOTHING, "traces are not exported"),
    "collect_detailed_traces": (_NOTHING, "traces are not exported"),
    "disable_log_stats": ((None, False, True), "an engine logs no statistics by itself"),
}


_PROXY = "this is a proxy's business"
_FRONT_END = "there is one process that serves one engine"

# The same for options of `vllm serve` that concern the server itself.
SERVER_ARGUMENTS: dict[str, tuple[tuple[object, ...], str]] = {
    "ssl_keyfile": (_NOTHING, _PROXY),
    "ssl_certfile": (_NOTHING, _PROXY),
    "ssl_ca_certs": (_NOTHING, _PROXY),
    "ssl_cert_reqs": ((None, 0), _PROXY),
    "enable_ssl_refresh": (_NOTHING, _PROXY),
    "allowed_origins": ((None, ["*"]), _PROXY),
    "allowed_methods": ((None, ["*"]), _PROXY),
    "allowed_headers": ((None, ["*"]), _PROXY),
    "allow_credentials": (_NOTHING, _PROXY),
    "root_path": (_NOTHING, _PROXY),
    "uds": (_NOTHING, "give host and port"),
    "middleware": (_NOTHING, "there are no plugins"),
    "tool_parser_plugin": (_NOTHING, "there are no plugins"),
    "reasoning_parser_plugin": (_NOTHING, "there are no plugins"),
    "tool_server": (_NOTHING, _RAW_TEXT),
    "exclude_tools_when_tool_choice_none": ((None, True), "tool_choice none hands the template no tools"),
    "chat_template": (_NOTHING, "put chat_template.jinja into the tokenizer's directory"),
    "chat_template_content_format": ((None, "auto", "string"), "the template gets the content of a message as text"),
    "trust_request_chat_template": (_NOTHING, "templates of requests are not run"),
    "response_role": ((None, "assistant"), "answers are the assistant's"),
    "return_tokens_as_token_ids": (_NOTHING, "ask with return_token_ids"),
    "enable_prompt_tokens_details": ((None, False, True), "usage always has prompt_tokens_details"),
    "enable_force_include_usage": (_NOTHING, "ask with stream_options.include_usage"),
    "enable_request_id_headers": (_NOTHING, "give request_id in the body"),
    "enable_server_load_tracking": (_NOTHING, "see num_requests_running in /metrics"),
    "enable_log_requests": (_NOTHING, "logs hold no text of requests"),
    "enable_log_outputs": (_NOTHING, "logs hold no text of answers"),
    "disable_log_requests": ((None, False, True), "logs hold no text of requests"),
    "max_log_len": (_NOTHING, "logs hold no text of requests"),
    "log_config_file": (_NOTHING, "use uvicorn_log_level"),
    "disable_fastapi_docs": ((None, False, True), "there are no such pages"),
    "disable_frontend_multiprocessing": ((None, False, True), _FRONT_END),
    "api_server_count": ((None, 1), _FRONT_END),
    "headless": (_NOTHING, _FRONT_END),
    "data_parallel_size_local": ((None, 1), "start one server for each device"),
    "data_parallel_rank": ((None, 0), "start one server for each device"),
    "data_parallel_address": (_NOTHING, "start one server for each device"),
    "data_parallel_backend": ((None, "mp"), "start one server for each device"),
    "nnodes": ((None, 1), _ONE_DEVICE),
    "node_rank": ((None, 0), _ONE_DEVICE),
    "config": (_NOTHING, "give the options on the command line"),
    "h11_max_incomplete_event_size": (_NOTHING, "the limits of HTTP heads are fixed"),
    "h11_max_header_count": (_NOTHING, "the limits of HTTP heads are fixed"),
}

# The same for the methods generate and chat.
CALL_ARGUMENTS: dict[str, tuple[tuple[object, ...], str]] = {
    "lora_request": (_NOTHING, "merge the adapter into the weights"),
    "prompt_adapter_request": (_NOTHING, "merge the adapter into the weights"),
    "guided_options_request": (_NOTHING, "use SamplingParams.structured_outputs"),
    "tokenization_kwargs": (_NOTHING, "give token ids, or truncate_prompt_tokens in SamplingParams"),
    "mm_processor_kwargs": (_NOTHING, _TEXT_ONLY),
    "chat_template_content_format": ((None, "auto", "string"), "the template gets the content of a message as text"),
    "continue_final_message": ((None, False), "render the prompt yourself and call generate"),
}


def refuse_other_arguments(
    arguments: Mapping[str, Any], known: Mapping[str, tuple[tuple[object, ...], str]] = ENGINE_ARGUMENTS
) -> None:
    """Raises UnsupportedError for vLLM's arguments that ask for something, and TypeError for unknown names."""
    for name, value in arguments.items():
        if name not in known:
            raise TypeError(f"unexpected argument {name!r}")
        neutral, reason = known[name]
        if not any(type(value) is type(one) and value == one for one in neutral):
            raise UnsupportedError(f"{name}={shown(value)} is not supported by this version: {reason}")
