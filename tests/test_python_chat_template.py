"""Chat templates are untrusted: they render as in Hugging Face's library, and attacks end in a clear error, soon."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from eagle31rt import chat_template
from eagle31rt.chat_template import ChatTemplate
from eagle31rt.errors import InvalidArgumentError

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}]


def render(source: str, **variables: object) -> str:
    return ChatTemplate(source).render({"messages": MESSAGES, **variables})


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for m in messages %}\n  {% if true %}\n{{ m.role }}={{ m['content'] }};\n  {% endif %}\n{% endfor %}",
         "user=hi;\nassistant=ho;\n"),  # trim_blocks and lstrip_blocks
        ("{{ {'b': '<é>', 'a': [1, none]} | tojson }}", '{"b": "<é>", "a": [1, null]}'),  # no HTML escapes
        ("{{ {'a': 1} | tojson(indent=2) }}", '{\n  "a": 1\n}'),
        ("{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.role }}{% endfor %}", "user"),
        ("{% generation %}x{% endgeneration %}y", "xy"),
        ("{{ strftime_now('%Y') | length }}", "4"),
        ("{{ undefined_name }}|{{ tools is none }}", "|False"),
        ("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}", "2"),
        ("{{ messages[0].content.upper().split('I')[0] }}", "H"),
        ("<{{ '{0.__class__}'.format(messages) }}>", "<>"),  # the sandbox gives nothing
        ("{% macro f(x) %}<{{ x }}>{% endmacro %}{{ f('a') }}", "<a>"),
    ],
)  # fmt: skip
def test_renders(source: str, expected: str) -> None:
    assert render(source) == expected


def test_raise_exception_is_the_message() -> None:
    with pytest.raises(InvalidArgumentError, match=r"^chat template: System role not supported$"):
        render("{{ raise_exception('System role not supported') }}")


ATTACKS = {
    "huge range": "{% for i in range(10**9) %}x{% endfor %}",
    "string product": "{{ 'a' * 10**10 }}",
    "list product": "{{ [0] * 10**10 }}",
    "center": "{{ 'a'.center(10**10) }}",
    "center filter": "{{ 'a' | center(10**10) }}",
    "percent padding": "{{ '%10000000000d' % 1 }}",
    "format padding": "{{ '{:10000000000}'.format(1) }}",
    "format filter": "{{ '%10000000000s' | format('a') }}",
    "indent": "{{ [1] | tojson(indent=10**10) }}",
    "doubling": "{% set n = namespace(x='ab') %}{% for i in range(60) %}{% set n.x = n.x ~ n.x %}{% endfor %}",
    "replace": "{% set n = namespace(x='aa') %}{% for i in [0] * 9 %}{% set n.x = n.x.replace('a', n.x) %}{% endfor %}",
    "recursion": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "deep parentheses": "{{ " + "(" * 50000 + "1" + ")" * 50000 + " }}",
    "deep lists": "{{ " + "[" * 5000 + "]" * 5000 + " }}",
    "long output": "{% for i in range(99999) %}{{ 'x' * 1000 }}{% endfor %}",
    "class of a string": "{{ ''.__class__.__mro__ }}",
    "globals of a method": "{{ messages.append.__globals__ }}",
    "changes its input": "{{ messages.append(1) }}",
    "reads a file": "{% include '/etc/hostname' %}",
    "syntax": "{% for %}",
    "missing": "{{ messages.nothing.at_all }}",
}


@pytest.mark.parametrize("name", list(ATTACKS))
def test_attacks_end_soon_in_an_error(name: str) -> None:
    started = time.monotonic()
    with pytest.raises(InvalidArgumentError, match=r"^chat template: ."):
        render(ATTACKS[name])
    assert time.monotonic() - started < chat_template.MAX_SECONDS + 2
    assert render("{{ messages[0].content }}") == "hi"  # the next one is not affected


@pytest.mark.parametrize(
    "source",
    [
        "{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
        "{{ lipsum(n=10**8) }}",
        "{% for i in range(99999) %}{% set x = range(99999) | list | sum %}{% endfor %}",
    ],
)
def test_endless_ones_are_stopped(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chat_template, "MAX_SECONDS", 0.5)
    with pytest.raises(InvalidArgumentError, match=r"did not finish within 0\.5 seconds"):
        render(source)
    monkeypatch.undo()
    assert render("after") == "after"


def test_limits_on_the_template_and_its_values() -> None:
    with pytest.raises(InvalidArgumentError, match="longer than"):
        ChatTemplate("x" * (chat_template.MAX_TEMPLATE_BYTES + 1))
    with pytest.raises(InvalidArgumentError, match="must be text, got int"):
        ChatTemplate(3)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="plain JSON values"):
        render("x", value=object())
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(InvalidArgumentError, match="plain JSON values"):
        render("x", value=deep)


def test_memory_is_limited_and_the_renderer_replaced() -> None:
    """An amount that the machine has, but a template may not."""
    assert render("{{ ('a' * 10**7) | length }}") == "10000000"
    before = chat_template._renderer._process
    with pytest.raises(InvalidArgumentError, match="needs too much memory"):
        render("{{ ('a' * 600000000) | length }}")
    assert render("x") == "x"
    assert chat_template._renderer._process is not before


def test_a_killed_renderer_is_replaced() -> None:
    render("x")
    process = chat_template._renderer._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert render("y") == "y"


def test_large_conversations_pass() -> None:
    text = "é\n" * 300_000
    assert render("{{ text }}!", text=text) == text + "!"


def test_the_renderer_ends_with_its_parent() -> None:
    """Killed outright, the parent cannot clean up: the end of its pipe must do."""
    program = (
        "import os; from eagle31rt import chat_template as c; c.ChatTemplate('x').render({});"
        "print(c._renderer._process.pid, flush=True); os.kill(os.getpid(), 9)"
    )
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60).stdout
    pid = int(shown)
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and _is_running(pid):
        time.sleep(0.05)
    assert not _is_running(pid)


def _is_running(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False
