"""A tokenizer's chat template: what it reads, and what it makes of a conversation."""

import inspect
import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from specdec.errors import SpecError, TargetMismatch, did_you_mean
from specdec.interfaces.text_codec import ChatFormat

OF_THE_TEMPLATE = ("tools", "documents")
"""Parameters of `apply_chat_template` that are variables of the template."""

FUNCTIONS = {"raise_exception", "strftime_now"}
"""What transformers adds to jinja's language, beside the marks."""

MARKS = re.compile(r"\{%-?\s*(end)?generation\s*-?%\}")


class ChatTemplate:
    """The chat template of a transformers tokenizer, which may have none."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer

    @cached_property
    def text(self) -> str | None:
        """The template in jinja's language, or None where there is none."""
        return str(self._tokenizer.get_chat_template()) if self._tokenizer.chat_template else None

    @cached_property
    def marks_answers(self) -> bool:
        """Whether `{% generation %}` marks say what the assistant said."""
        return self.text is not None and MARKS.search(self.text) is not None

    def apply(
        self, messages: Sequence[Mapping[str, str]], chat_format: ChatFormat, *, add_generation_prompt: bool, **options: Any
    ) -> Any:
        """What `apply_chat_template` gives.

        Raises:
            TargetMismatch: Without a template.
            SpecError: For an argument that it does not read.
        """
        if self.text is None:
            raise TargetMismatch("this tokenizer has no chat template; give the prompt as text, or name an instruct model")
        if chat_format.arguments:
            self._check(chat_format.arguments)
        if chat_format.escape_control_tokens:
            if "sanitize_control_tokens" not in self._parameters:
                raise TargetMismatch("this transformers cannot escape control tokens; control_tokens='refuse' would work")
            options["sanitize_control_tokens"] = True
        if chat_format.continue_final_message:
            options["continue_final_message"] = True
        return self._tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            add_generation_prompt=add_generation_prompt and not chat_format.continue_final_message,
            **{"return_dict": True, **options, **chat_format.arguments},
        )

    @cached_property
    def _parameters(self) -> frozenset[str]:
        return frozenset(inspect.signature(self._tokenizer.apply_chat_template).parameters)

    @cached_property
    def _variables(self) -> frozenset[str] | None:
        """What the template reads; None for one that is written in more than jinja's own language."""
        from jinja2 import Environment, TemplateSyntaxError, meta

        environment = Environment(extensions=["jinja2.ext.loopcontrols"])
        try:
            return frozenset(meta.find_undeclared_variables(environment.parse(MARKS.sub("", self.text or ""))) - FUNCTIONS)
        except TemplateSyntaxError:
            return None

    def _check(self, arguments: Mapping[str, Any]) -> None:
        """Raise SpecError for a name that the template does not read, or that is not for it."""
        own = {"messages", *self._parameters} - {*OF_THE_TEMPLATE, "kwargs"}
        for name in arguments:
            if name in own:
                raise SpecError(f"chat_template_kwargs: {name!r} is set by specdec itself; it is no argument of the template")
            if self._variables is not None and name not in self._variables:
                near = did_you_mean(name, self._variables - own, listing="it reads")
                raise SpecError(f"chat_template_kwargs: the chat template reads no {name!r}{near}")
