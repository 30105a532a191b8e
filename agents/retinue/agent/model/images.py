"""Images that a model makes: out of base64 or a URL into parts of a message. What is no image is left out."""

from __future__ import annotations

import base64
import binascii
import re

from retinue.service.chat import Blob, Part

_DATA_URL = re.compile(r"data:(image/[\w.+-]+);base64,(.*)", re.DOTALL)


def image_of(mime: object, data: object) -> list[Part]:
    """The part of an image in base64; none where it is not one."""
    if not isinstance(mime, str) or not mime.startswith("image/") or not isinstance(data, str):
        return []
    try:
        return [Part(image=Blob(mime, data=base64.b64decode(data, validate=True)))]
    except binascii.Error:
        return []


def image_at(url: object) -> list[Part]:
    """The part of an image at a URL, which may hold its data."""
    if not isinstance(url, str):
        return []
    if found := _DATA_URL.fullmatch(url):
        return image_of(found[1], found[2])
    return [Part(image=Blob("image/*", uri=url))] if url.startswith(("http://", "https://")) else []
