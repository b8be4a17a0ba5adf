"""What a target's tokenizer does: text to ids and back, and the chat template."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class ChatFormat:
    """How a conversation is put to the chat template.

    Attributes:
        arguments: Variables of the template beside the messages, such as `enable_thinking`.
        continue_final_message: The assistant's last message is left open, to be continued, and no turn is begun.
        escape_control_tokens: Control tokens in messages become ordinary text; the template's own stay control tokens.
    """

    arguments: Mapping[str, Any] = field(default_factory=dict)
    continue_final_message: bool = False
    escape_control_tokens: bool = False


PLAIN_CHAT = ChatFormat()


class TextCodec(ABC):
    """Text to ids and back, and the chat template."""

    @abstractmethod
    def encode(self, text: str, *, opens: bool = True, escape_control_tokens: bool = False) -> list[int]:
        """Ids of a raw text.

        Args:
            text: What is encoded. Control tokens in it are read as such, unless they are escaped.
            opens: Whether the text begins a sequence: then the tokens that the tokenizer puts in front, such as BOS, come
                first, unless the text itself begins with the first of them. What it appends, such as EOS, never comes.
            escape_control_tokens: Control tokens in the text become ordinary text.
        """

    @abstractmethod
    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids, special tokens left out."""

    @property
    @abstractmethod
    def special_tokens(self) -> Mapping[int, str]:
        """What `decode` leaves out: id -> the text that `encode` reads as this token."""

    @property
    @abstractmethod
    def control_tokens(self) -> Collection[str]:
        """Texts that steer a chat wherever they occur: special tokens, and others that the chat template writes."""

    @property
    @abstractmethod
    def chat_template(self) -> str | None:
        """The chat template as it is written, or None where there is none."""

    @abstractmethod
    def chat(self, messages: Sequence[Mapping[str, str]], chat_format: ChatFormat = PLAIN_CHAT) -> list[int]:
        """Ids of a conversation up to where the assistant answers.

        Raises:
            TargetMismatch: Without a chat template.
            SpecError: For an argument that the template does not read.
        """

    @abstractmethod
    def vocabulary(self) -> Mapping[str, int]:
        """Token string -> id."""

    @abstractmethod
    def tokenizer_json(self) -> str | None:
        """The tokenizer in the JSON of the tokenizers library, which says what text each id writes; None without one."""
