"""Child process that renders untrusted chat templates: JSON lines in, JSON lines out.

Three fences: jinja2's immutable sandbox (no access to Python's insides), limits of the operating system on memory and
processor time, and the parent, which kills this process when it takes too long. Run by chat_template.py only.
Arguments: memory in bytes, characters of a rendered text, processor seconds of one rendering.
"""

import os
import sys

# A script's folder comes first on the path; the modules of this package must not stand in for others.
sys.path[:] = [path for path in sys.path if os.path.abspath(path) != os.path.dirname(os.path.abspath(__file__))]

import json  # noqa: E402
import resource  # noqa: E402
import signal  # noqa: E402
from datetime import datetime  # noqa: E402
from functools import lru_cache  # noqa: E402
from typing import Any, NoReturn  # noqa: E402

import jinja2  # noqa: E402
from jinja2 import nodes  # noqa: E402
from jinja2.ext import Extension, loopcontrols  # noqa: E402
from jinja2.parser import Parser  # noqa: E402
from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: E402


class _GenerationTag(Extension):
    """`{% generation %}` of training templates marks the assistant's text; for inference it changes nothing."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes for HTML; chat templates expect plain JSON.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: object) -> NoReturn:
    raise jinja2.TemplateError(str(message))


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


@lru_cache(maxsize=8)
def _compiled(source: str) -> jinja2.Template:
    return _environment().from_string(source)


def _rendered(source: str, variables: dict[str, Any], max_characters: int) -> str:
    pieces: list[str] = []
    length = 0
    for piece in _compiled(source).generate(variables):
        length += len(piece)
        if length > max_characters:
            raise jinja2.TemplateError(f"gives more than {max_characters} characters")
        pieces.append(piece)
    return "".join(pieces)


def _answer(line: bytes, max_characters: int) -> dict[str, str]:
    request = json.loads(line)
    try:
        return {"text": _rendered(request["source"], request["variables"], max_characters)}
    except MemoryError:
        raise
    except RecursionError:
        return {"error": "recurses too deeply"}
    except Exception as error:  # whatever a template can bring about is the template's error
        kind = "" if isinstance(error, jinja2.TemplateError) else f"{type(error).__name__}: "
        return {"error": f"{kind}{error}"[:2000]}


def _limit_processor_seconds(seconds: int) -> None:
    # Only in case the parent dies while a template loops; the soft limit is on the total since the start.
    used = resource.getrusage(resource.RUSAGE_SELF)
    total = int(used.ru_utime + used.ru_stime) + seconds + 1
    resource.setrlimit(resource.RLIMIT_CPU, (total, resource.getrlimit(resource.RLIMIT_CPU)[1]))


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's business
    memory, max_characters, seconds = (int(argument) for argument in sys.argv[1:4])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    stdout.write(b"ready\n")
    stdout.flush()
    while line := stdin.readline():
        _limit_processor_seconds(seconds)
        try:
            reply = json.dumps(_answer(line, max_characters)).encode("ascii")
        except MemoryError:
            # What is left of the memory may be in pieces: the parent should start a fresh process.
            reply = b'{"error": "needs too much memory", "restart": true}'
        stdout.write(reply + b"\n")
        stdout.flush()


if __name__ == "__main__":
    main()
