"""Previous and Next at the foot of a page: the way of a reader, without listings.

The theme would lead through every page of navigation.yml in its order. There the scripts of a stage
stand between its last notebook and the next stage, and the Chinese pages follow the English ones.
"""

from pathlib import PurePosixPath

LEFT_OUT = "AGENTS"  # this page is for programs, not for readers


def names_of(navigation: dict) -> dict[str, str]:
    """The short name of each page in navigation.yml -> {page: name}"""
    names = {}
    for groups in navigation.values():
        for pages in groups.values():
            for name, page in pages.items():
                names[page] = name
    return names


def neighbours(page: str, relations: dict, scripts: set[str]) -> tuple[str | None, str | None]:
    """The pages before and after a page, for somebody who reads from the start to the end.

    relations: {page: [page above, page before, page after]}, as Sphinx has collected them.
    """
    if page in scripts or is_left_out(page):
        return None, None
    found = []
    for place in (1, 2):
        other = relations.get(page, [None, None, None])[place]
        while other is not None and not belongs(other, page, scripts):
            other = relations[other][place]
        found.append(other)
    return found[0], found[1]


def belongs(other: str, page: str, scripts: set[str]) -> bool:
    """Is the other page one of the same language that is meant to be read?"""
    same_language = is_chinese(other) == is_chinese(page)
    return same_language and other not in scripts and not is_left_out(other)


def is_chinese(page: str) -> bool:
    return page.endswith(".zh")


def is_left_out(page: str) -> bool:
    return PurePosixPath(page).name == LEFT_OUT
