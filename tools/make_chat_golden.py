#!/usr/bin/env python3
"""Renders conversations by the chat templates of models, as `apply_chat_template` of transformers does.

  make_chat_golden.py FOLDER > tests/golden/chat_templates.json

FOLDER has the Jinja template NAME.jinja for each name of TEMPLATES below, of the model that is named there. Tools and
thoughts are not rendered. Needs jinja2."""

import json
import pathlib
import sys

from jinja2.sandbox import ImmutableSandboxedEnvironment

# --chat's name -> model, its bos_token and eos_token, and what Moewright leaves out of the text: default system messages,
# dates, and the begin of thoughts.
CHATML_DEFAULT = "<|im_start|>system\nYou are a helpful assistant<|im_end|>\n"
KIMI_DEFAULT = "<|im_system|>system<|im_middle|>You are a helpful assistant<|im_end|>"
MINIMAX_DEFAULT = "]~b]system\nYou are a helpful assistant.[e~[\n"
DEEPSEEK = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>")
TEMPLATES = {
    "chatml": ("Qwen/Qwen1.5-MoE-A2.7B", "", "<|endoftext|>", [CHATML_DEFAULT]),
    "qwen3": ("Qwen/Qwen3-0.6B", "", "<|im_end|>", []),
    "mixtral": ("mistralai/Mixtral-8x7B-Instruct-v0.1 (first version)", "<s>", "</s>", []),
    "deepseek_v2": ("deepseek-ai/DeepSeek-V2-Lite-Chat", *DEEPSEEK, []),
    "deepseek_v3": ("deepseek-ai/DeepSeek-V3-Base", *DEEPSEEK, []),
    "deepseek_v31": ("deepseek-ai/DeepSeek-V3.1", *DEEPSEEK, []),
    "glm4": ("zai-org/GLM-4.6", "", "<|endoftext|>", []),
    "kimi": ("moonshotai/Kimi-K2-Instruct", "", "<|im_end|>", [KIMI_DEFAULT]),
    "granite": ("ibm-granite/granite-3.0-1b-a400m-instruct", "", "<|end_of_text|>", []),
    "phi": ("microsoft/Phi-3.5-mini-instruct", "<s>", "<|endoftext|>", []),
    "gpt_oss": ("openai/gpt-oss-120b", "<|startoftext|>", "<|return|>", ["Current date: 2025-01-02\n"]),
    "minimax": ("unsloth/MiniMax-M2", "]~!b[", "[e~[", [MINIMAX_DEFAULT, "<think>\n"]),
    "ernie": ("baidu/ERNIE-4.5 (of transformers' tokenizer)", "<s>", "</s>", []),
    "hunyuan": ("tencent/Hunyuan-A13B-Instruct", "<|startoftext|>", "<|eos|>", []),
    "olmoe": ("allenai/open-instruct's \"tulu\" with bos_token", "<|endoftext|>", "<|endoftext|>", []),
}
SYSTEM = ("system", "S")
TALK = [("user", "Hi,\nyou"), ("assistant", "Yes?"), ("user", "Go"), ("assistant", "No")]
# Whether the answer that follows is asked for.
TEXTS = {"system": ([SYSTEM, *TALK], False), "no_system": (TALK, False), "question": (TALK[:1], True), "turns": (TALK[:3], True)}


def refuse(reason):
    raise ValueError(reason)


def main():
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"])
    environment.globals.update(raise_exception=refuse, strftime_now=lambda form: "2025-01-02")
    rendered = {}
    for name, (model, bos, eos, left_out) in TEMPLATES.items():
        template = environment.from_string((pathlib.Path(sys.argv[1]) / f"{name}.jinja").read_text())
        texts = {}
        for key, (talk, asks) in TEXTS.items():
            if name == "mixtral" and key == "system":
                continue  # that version has no system messages
            messages = [{"role": role, "content": content} for role, content in talk]
            texts[key] = template.render(messages=messages, bos_token=bos, eos_token=eos, add_generation_prompt=asks)
        rendered[name] = {"model": model, "left_out": left_out, **texts}
    print(json.dumps(rendered, indent=1, ensure_ascii=False))


main()
