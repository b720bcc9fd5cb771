"""Training of EAGLE-3 and EAGLE-3.1 heads, behind `eagle31rt train` (needs the extra [train]).

How a run flows: `generation` lets the target write conversations with our engine; `features` captures its states over
them, the same bits that the engine feeds a draft; `unroll` trains the head of `llama_head` on chains of its own states,
as the engine drafts; `export` writes a directory that the engine and vLLM load. See docs/training.md.
"""
