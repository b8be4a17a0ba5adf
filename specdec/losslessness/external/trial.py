"""What a decoder of which nothing is known but its answers is judged by, and how much time there is for it."""

import time
from dataclasses import dataclass

from specdec.decoding.decoder import Decoder
from specdec.interfaces.text_codec import PLAIN_CHAT, ChatFormat
from specdec.losslessness.external.callables import Answering
from specdec.losslessness.levels import Progress
from specdec.losslessness.reference_model import Reference


@dataclass(frozen=True, slots=True, eq=False)
class Trial:
    """answering: the callable under test. decoder: plain decoding of its target. began: by `time.monotonic`; loading counts.

    chat_format: how prompts are put to the chat template.
    """

    answering: Answering
    decoder: Decoder
    reference: Reference
    seed: int
    began: float
    seconds: float
    progress: Progress
    chat_format: ChatFormat = PLAIN_CHAT

    @property
    def elapsed(self) -> float:
        """Seconds."""
        return time.monotonic() - self.began

    @property
    def is_over(self) -> bool:
        """Whether the time is used up."""
        return self.elapsed >= self.seconds

    def say(self, words: str) -> None:
        """Report progress."""
        self.progress(min(1.0, self.elapsed / self.seconds), words)
