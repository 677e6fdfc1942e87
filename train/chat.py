"""Conversations as text, by the chat template that a checkpoint brings along.

Templates are Jinja programs written for `transformers`; they run in a sandbox, with the same
settings and helpers as there, so that the text, and hence the ids, are the same.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.nodes import CallBlock, Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from train.config import DataConfig
from train.text import TextCodec, read_settings, token_text

NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class ChatTemplate:
    """The template of one checkpoint."""

    def __init__(self, folder: Path) -> None:
        """Reads `chat_template` and the named tokens of `tokenizer_config.json`.

        Raises:
            ValueError: There is no template, or it is no valid Jinja.
        """
        settings = read_settings(folder / "tokenizer_config.json")
        source = settings.get("chat_template")
        if isinstance(source, list):  # several by name
            named = {entry.get("name"): entry.get("template") for entry in source}
            source = named.get("default")
        if not isinstance(source, str):
            raise ValueError(
                f"data.chat: found no chat_template in {folder}, allowed: a checkpoint"
                " with one, or data.chat=false"
            )
        try:
            self._template = _environment().from_string(source)
        except TemplateError as error:
            raise ValueError(f"chat_template of {folder}: {error}") from None
        self._tokens = {name: token_text(settings.get(name)) or "" for name in NAMED_TOKENS}

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        thinking: bool | None = None,
        generation: bool = True,
    ) -> str:
        """The text of a conversation.

        Args:
            messages: Each with `role`, `content` and what else the template reads.
            tools: Functions that may be called, as JSON schemas.
            thinking: `enable_thinking` of templates that know it, such as Qwen3's; None leaves the
                template's own default.
            generation: End where the assistant's next turn begins.

        Raises:
            ValueError: The template refuses the conversation.
        """
        flags = {} if thinking is None else {"enable_thinking": thinking}
        try:
            return self._template.render(
                messages=messages,
                tools=tools,
                documents=None,
                add_generation_prompt=generation,
                **self._tokens,
                **flags,
            )
        except TemplateError as error:
            raise ValueError(f"chat template: {error}") from None


def open_codec(folder: Path, data: DataConfig) -> TextCodec:
    """The tokenizer of a folder, with its chat template where `data.chat` asks for it.

    Raises:
        ValueError: As `TextCodec` and `ChatTemplate`.
    """
    if not data.chat:
        return TextCodec(folder)
    template = ChatTemplate(folder)
    before = [{"role": "system", "content": data.system}] if data.system else []

    def as_prompt(text: str) -> str:
        messages = [*before, {"role": "user", "content": text}]
        return template.render(messages, thinking=data.thinking)

    return TextCodec(folder, as_prompt)


class _GenerationTag(Extension):
    """`{% generation %}` marks what the assistant says, for other uses; here it changes nothing."""

    tags = {"generation"}  # noqa: RUF012 - jinja2 declares it so

    def parse(self, parser: Parser) -> Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return CallBlock(self.call_method("_say"), [], [], body).set_lineno(line)

    def _say(self, caller: Any) -> str:
        return caller()


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes HTML
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)
