"""Imitations of the chat templates of public model families, each with the peculiarities of its family.

They have the family's markers, end of turn, trimming, removal of thoughts, generation prompt and system message.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Family:
    """A family's template.

    end: token that ends an answer.
    strips: whether thoughts are removed from earlier answers.
    system: kept, folded (the template refuses the role) or last (put before the last user message).
    """

    name: str
    template: str
    end: str
    special: tuple[str, ...] = ()
    strips: bool = False
    system: str = "kept"
    bos: str | None = None
    variables: dict[str, Any] = field(default_factory=dict)


CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
CHATML_ASK = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
IM = ("<|im_start|>", "<|im_end|>")
THINKLESS = "(m.content.split('</think>')|last).lstrip('\n') if m.role == 'assistant' else m.content"
QWEN3 = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ " + THINKLESS + " }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is false %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
INST = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'user' %}[INST] {{ m.content }} [/INST]"
    "{% elif m.role == 'assistant' %}{{ ' ' + m.content + '</s>' }}"
    "{% else %}{{ raise_exception('only user and assistant') }}{% endif %}{% endfor %}"
)
INST_LAST = (
    "{{ bos_token }}{% set said = messages|selectattr('role', 'equalto', 'system')|map(attribute='content')|first %}"
    "{% for m in messages %}{% if m.role == 'user' %}[INST]{% if loop.last and said %}{{ said }}\n\n{% endif %}"
    "{{ m.content }}[/INST]{% elif m.role == 'assistant' %}{{ m.content }}</s>{% endif %}{% endfor %}"
)
HEADERS = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content|trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
ROLE_LINES = (
    "{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}END\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)
ROLES = ("<|system|>", "<|user|>", "<|assistant|>")

FAMILIES = [
    Family(
        "Qwen2.5",
        "{% if messages[0].role != 'system' %}<|im_start|>system\nBe of help.<|im_end|>\n{% endif %}"
        + CHATML
        + CHATML_ASK,
        "<|im_end|>",
        IM,
    ),
    Family(
        "Qwen3",
        QWEN3,
        "<|im_end|>",
        (*IM, "<think>", "</think>"),
        strips=True,
    ),
    Family(
        "Qwen3 without thinking",
        QWEN3,
        "<|im_end|>",
        (*IM, "<think>", "</think>"),
        strips=True,
        variables={"enable_thinking": False},
    ),
    Family(
        "Llama 3", HEADERS, "<|eot_id|>", ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"), bos="<|begin|>"
    ),
    Family(
        "Llama 3.2",
        "{{ bos_token }}<|start_header_id|>system<|end_header_id|>\n\nToday Date: {{ date_string }}\n\n"
        "{% if messages[0].role == 'system' %}{{ messages[0].content|trim }}"
        "{% set messages = messages[1:] %}{% endif %}<|eot_id|>" + HEADERS.removeprefix("{{ bos_token }}"),
        "<|eot_id|>",
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        bos="<|begin|>",
    ),
    Family(
        "Gemma",
        "{{ bos_token }}{% for m in messages %}"
        "{% if m.role == 'system' %}{{ raise_exception('no system role') }}{% endif %}"
        "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content|trim }}<end_of_turn>\n"
        "{% endfor %}"
        "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}",
        "<end_of_turn>",
        ("<start_of_turn>", "<end_of_turn>"),
        system="folded",
        bos="<bos>",
    ),
    Family("Mistral 7B", INST, "</s>", ("</s>",), system="folded", bos="<s>"),
    Family("Mistral Nemo", INST_LAST, "</s>", ("[INST]", "[/INST]", "</s>"), system="last", bos="<s>"),
    Family("Phi-3", ROLE_LINES.replace("END", "<|end|>"), "<|end|>", (*ROLES, "<|end|>")),
    Family(
        "Phi-4",
        "{% for m in messages %}<|im_start|>{{ m.role }}<|im_sep|>{{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant<|im_sep|>{% endif %}",
        "<|im_end|>",
        (*IM, "<|im_sep|>"),
    ),
    Family(
        "DeepSeek-R1",
        "{{ bos_token }}{% for m in messages %}{% if m.role == 'system' %}{{ m.content }}"
        "{% elif m.role == 'user' %}<|User|>{{ m.content }}"
        "{% else %}<|Assistant|>{{ (m.content.split('</think>')|last).lstrip('\n') }}<|eos|>{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|Assistant|><think>\n{% endif %}",
        "<|eos|>",
        ("<|User|>", "<|Assistant|>", "<|eos|>", "<think>", "</think>"),
        strips=True,
        bos="<|bos|>",
    ),
    Family(
        "gpt-oss",
        "<|start|>system<|message|>Today is {{ strftime_now('%Y-%m-%d') }}<|end|>"
        "{% for m in messages %}{% if m.role == 'assistant' %}<|start|>assistant<|channel|>final<|message|>"
        "{{ (m.content.split('final<|message|>')|last) }}<|end|>{% else %}"
        "<|start|>{{ 'developer' if m.role == 'system' else m.role }}<|message|>{{ m.content }}<|end|>{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}<|start|>assistant{% endif %}",
        "<|return|>",
        ("<|start|>", "<|message|>", "<|end|>", "<|channel|>", "<|return|>"),
        strips=True,
    ),
    Family(
        "Granite",
        "{% for m in messages %}<|start_of_role|>{{ m.role }}<|end_of_role|>{{ m.content }}<|end_of_text|>\n"
        "{% endfor %}"
        "{% if add_generation_prompt %}<|start_of_role|>assistant<|end_of_role|>{% endif %}",
        "<|end_of_text|>",
        ("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"),
    ),
    Family(
        "OLMo 2",
        "{{ bos_token }}{% for m in messages %}<|{{ m.role }}|>\n{{ m.content }}"
        "{% if m.role == 'assistant' %}{{ eos_token }}{% endif %}\n{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
        "<|endoftext|>",
        (*ROLES, "<|endoftext|>"),
        bos="<|bos|>",
    ),
    Family(
        "SmolLM3",
        "<|im_start|>system\nToday: {{ strftime_now('%d %B %Y') }}"
        "{% if messages[0].role == 'system' %}\n{{ messages[0].content }}{% set messages = messages[1:] %}{% endif %}"
        "<|im_end|>\n{% for m in messages %}<|im_start|>{{ m.role }}\n{{ "
        + THINKLESS
        + " }}<|im_end|>\n{% endfor %}"
        + CHATML_ASK,
        "<|im_end|>",
        (*IM, "<think>", "</think>"),
        strips=True,
    ),
    Family(
        "GLM-4",
        "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>\n{{ " + THINKLESS + " }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>\n{% endif %}",
        "<|user|>",
        (*ROLES, "[gMASK]", "<sop>", "<think>", "</think>"),
        strips=True,
    ),
    Family(
        "Command R",
        "{{ bos_token }}{% for m in messages %}<|START|><|{{ m.role }}|>{{ m.content }}<|END|>{% endfor %}"
        "{% if add_generation_prompt %}<|START|><|assistant|>{% endif %}",
        "<|END|>",
        (*ROLES, "<|START|>", "<|END|>"),
        bos="<BOS>",
    ),
    Family("Zephyr", ROLE_LINES.replace("END", "{{ eos_token }}"), "</s>", (*ROLES, "</s>")),
]
