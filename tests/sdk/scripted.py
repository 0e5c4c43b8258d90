# SPDX-License-Identifier: Apache-2.0
"""A model for smolagents that says what its script says: no network, no randomness."""
from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from smolagents.models import ChatMessage, MessageRole, Model


class Scripted(Model):
    """Each reply is code, or a function that is given the whole conversation as text and returns code."""

    def __init__(self, *replies: str | Callable[[str], str]) -> None:
        super().__init__(model_id="scripted")
        self.replies = list(replies)
        self.seen: list[str] = []

    def generate(self, messages: Iterable[Any], *args: Any, **kwargs: Any) -> ChatMessage:
        self.seen.append("\n".join(text_of(message) for message in messages))
        reply = self.replies.pop(0)
        code = reply if isinstance(reply, str) else reply(self.seen[-1])
        return ChatMessage(role=MessageRole.ASSISTANT, content=f"Thought: go on\n<code>\n{code}\n</code>")


def text_of(message: Any) -> str:
    content = message.content if hasattr(message, "content") else message["content"]
    if isinstance(content, str):
        return content
    return "\n".join(part.get("text", "") for part in content or [])
