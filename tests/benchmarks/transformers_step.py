#!/usr/bin/env python3
"""Times one training step of a model of transformers on the CPU, at the shape of a config of ours.

usage: transformers_step.py CONFIG [--threads N] [--steps N]
Prints one JSON line a (dtype, kind): the median step in ms, tokens/s, and GFLOP/s counted as
6 x parameters of matrices that a token multiplies with (as `gflops_without_attention` of bin/bench).
Kinds: "eager" (a loop over experts), "grouped_mm", and "compile" (grouped_mm under torch.compile).
One that fails is a line with "error". Exit code 3: torch or transformers is not installed.
"""

import argparse
import json
import sys
import time

try:
    import torch
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
except ImportError as missing:
    print(f"transformers_step.py: {missing}", file=sys.stderr)
    sys.exit(3)

WARMUP = 2  # steps that are not timed; torch.compile compiles in the first
KINDS = [("f32", "eager"), ("f32", "grouped_mm"), ("f32", "compile"),
         ("bf16", "eager"), ("bf16", "grouped_mm"), ("bf16", "compile")]


def build(config, dtype, experts):
    """The model of the config, whose router normalises and whose attention has QK-norm per head."""
    shape, moe = config["model"], config["moe"]
    settings = Qwen3MoeConfig(
        hidden_size=shape["hidden"], num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"], num_key_value_heads=shape["kv_heads"],
        head_dim=shape["head_dim"], vocab_size=shape["vocab_size"],
        max_position_embeddings=shape["max_seq"], num_experts=moe["experts"],
        num_experts_per_tok=moe["top_k"], moe_intermediate_size=moe["ffn"],
        intermediate_size=moe["ffn"], norm_topk_prob=True, use_cache=False)
    settings._attn_implementation = "sdpa"
    settings._experts_implementation = experts
    return Qwen3MoeForCausalLM(settings).to(dtype).train()


def matrix_elements(model, config):
    """Of the matrices that one token is multiplied with: K of E experts, no embedding look-up."""
    share = config["moe"]["top_k"] / config["moe"]["experts"]
    total = 0
    for name, values in model.named_parameters():
        if values.dim() >= 2 and "embed_tokens" not in name:
            total += values.numel() * (share if ".experts." in name else 1)
    return total


def measure(config, dtype_name, kind, steps):
    torch.manual_seed(config["run"]["seed"])
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[dtype_name]
    model = build(config, dtype, "eager" if kind == "eager" else "grouped_mm")
    elements = matrix_elements(model, config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=config["optim"]["lr"], fused=True)
    forward = torch.compile(model) if kind == "compile" else model
    batch, seq = config["train"]["micro_batch"], config["data"]["seq"]
    tokens = torch.randint(0, 256, (batch, seq))
    times = []
    for step in range(WARMUP + steps):
        start = time.perf_counter()
        loss = forward(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if step >= WARMUP:
            times.append(time.perf_counter() - start)
    times.sort()
    median = times[len(times) // 2]
    return {"step_ms": {"median": median * 1e3, "min": times[0] * 1e3, "max": times[-1] * 1e3},
            "tokens_per_s": batch * seq / median,
            "gflops_without_attention": 6 * elements * batch * seq / median / 1e9,
            "loss": loss.item()}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    with open(options.config, encoding="utf-8") as file:
        config = json.load(file)
    for dtype_name, kind in KINDS:
        line = {"bench": "transformers_step", "dtype": dtype_name, "kind": kind,
                "threads": torch.get_num_threads(), "torch": torch.__version__}
        try:
            line |= measure(config, dtype_name, kind, options.steps)
        except Exception as error:  # a kind that this version or machine lacks
            line["error"] = f"{type(error).__name__}: {error}".splitlines()[0][:200]
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
