"""Finding tags in a text that comes in parts."""


def held_back(text: str, tag: str) -> int:
    """Give how many characters at the end of `text` may be the beginning of `tag`."""
    for size in range(min(len(tag) - 1, len(text)), 0, -1):
        if text.endswith(tag[:size]):
            return size
    return 0
