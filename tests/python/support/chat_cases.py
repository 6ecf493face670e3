"""Conversations for the chat templates of tests/golden/chat_templates."""

from __future__ import annotations

from typing import Any

USER = {"role": "user", "content": "  What is the <b>weather</b> in Zürich & Genève? 🌦 "}
SYSTEM = {"role": "system", "content": "You answer\nbriefly."}
ANSWER = {"role": "assistant", "content": " It rains.\n"}
THOUGHT = {"role": "assistant", "content": "<think>\nHm, rain.\n</think>\n\nIt rains."}
AGAIN = {"role": "user", "content": "And tomorrow?"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"type": "function", "function": {"name": "weather", "arguments": {"city": "Zürich"}}}
    ],
}
RESULT = {"role": "tool", "content": '{"rain": "<5 mm"}'}
TOOL = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city's day",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
SPECIAL_TOKENS = {"bos_token": "<s>", "eos_token": "</s>"}
FIXED_DATE = {"date_string": "01 Jan 2026"}

# Name -> (template, messages, options as `TextModel.chat` has them).
CASES: dict[str, tuple[str, list[dict[str, Any]], dict[str, Any]]] = {
    "chatml": ("chatml", [USER], {}),
    "chatml-system": ("chatml", [SYSTEM, USER, ANSWER, AGAIN], {}),
    "chatml-whole": ("chatml", [SYSTEM, USER, ANSWER], {"add_generation_prompt": False}),
    "chatml-continued": (
        "chatml",
        [USER, ANSWER],
        {"add_generation_prompt": False, "continue_final_message": True},
    ),
    "llama3": ("llama3", [SYSTEM, USER], {"template_args": FIXED_DATE}),
    "llama3-tools": (
        "llama3",
        [USER, CALL, RESULT],
        {"tools": [TOOL], "template_args": FIXED_DATE},
    ),
    "llama3-continued": (
        "llama3",
        [USER, ANSWER],
        {
            "add_generation_prompt": False,
            "continue_final_message": True,
            "template_args": FIXED_DATE,
        },
    ),
    "mistral": ("mistral", [SYSTEM, USER, ANSWER, AGAIN], {}),
    "mistral-tools": ("mistral", [USER], {"tools": [TOOL]}),
    "gemma": ("gemma", [USER, ANSWER, AGAIN], {}),
    "qwen3": ("qwen3", [SYSTEM, USER, THOUGHT, AGAIN], {}),
    "qwen3-not-thinking": ("qwen3", [USER], {"template_args": {"enable_thinking": False}}),
    "qwen3-tools": ("qwen3", [SYSTEM, USER, CALL, RESULT], {"tools": [TOOL]}),
    "marked": (
        "marked",
        [USER, {"role": "skipped", "content": "x"}, ANSWER],
        {"documents": [{"title": "ä", "text": "<b>"}]},
    ),
}
# Beginnings of answers, which every template continues or does not write as they are.
BEGINNINGS: list[Any] = [
    "",
    "a",
    " a ",
    "\n\na\n",
    "<think>\nx\n</think>\n\nAnswer",
    "<think>x</think>Answer",
    "<think>\nx",
    "</think>",
    "  <think>\nx\n</think>\n\nAnswer ",
]
IN_PARTS: list[Any] = [
    [{"type": "text", "text": " a "}],
    [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}],
]
CONTINUED = {
    f"{template} {i}": (template, content)
    for template in ("chatml", "llama3", "mistral", "gemma", "qwen3", "parts", "cut")
    for i, content in enumerate(BEGINNINGS + (IN_PARTS if template == "parts" else []))
}
# Conversations that templates refuse: (template, messages) -> a part of the message.
REFUSED = {
    "gemma-system": ("gemma", [SYSTEM, USER], "System role not supported"),
    "mistral-order": ("mistral", [USER, USER], "must alternate"),
    "llama3-calls": (
        "llama3",
        [USER, CALL | {"tool_calls": CALL["tool_calls"] * 2}],
        "single tool-calls",
    ),
}
