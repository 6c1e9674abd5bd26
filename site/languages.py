"""Chinese pages: what the theme writes around them is Chinese, and their group comes first."""

import functools
import gettext
from pathlib import Path

import pydata_sphinx_theme
import sphinx_book_theme
from bs4 import BeautifulSoup
from reading_path import is_chinese
from sphinx.application import Sphinx

HOME = "README.zh"
TITLE = "PyTorch 分布式训练"
OTHERS = "英文页面"  # the fold of all other groups
GROUP = "中文"  # of navigation.yml
CATALOGUES = [  # a word that is in none of them stays English
    (sphinx_book_theme, "theme/sphinx_book_theme/static/locales/zh_CN/LC_MESSAGES/booktheme.mo"),
    (pydata_sphinx_theme, "locale/zh/LC_MESSAGES/sphinx.mo"),
]
WORDS = {  # what the catalogues lack
    "Toggle primary sidebar": "显示或隐藏页面列表",
    "Toggle secondary sidebar": "显示或隐藏目录",
    "Suggest edit": "编辑此页面",
    "Open an issue": "报告问题",
    "Print to PDF": "打印成 PDF",
    "Color mode": "颜色",
    "System Settings": "跟随系统",
    "Download this page": "下载此页",
    "Source repositories": "源代码仓库",
}


def speak_chinese(app: Sphinx, page: str, template: str, context: dict, doctree) -> None:
    """Give the theme's templates Chinese words for a Chinese page. It comes after the theme's own
    handlers, which set the English ones."""
    if not is_chinese(page):
        return
    context["_"] = context["gettext"] = context["translate"] = in_chinese
    context["theme_logo"] = {**context["theme_logo"], "link": HOME, "text": TITLE}
    for button in context.get("header_buttons", []):
        if "label" in button:
            button["tooltip"] = in_chinese(button.get("tooltip", ""))
    tree = context["generate_toctree_html"]
    context["generate_toctree_html"] = lambda **options: chinese_first(str(tree(**options)))


def in_chinese(words: str) -> str:
    if words in WORDS:
        return WORDS[words]
    found = (catalogue.gettext(words) for catalogue in catalogues())
    return next((chinese for chinese in found if chinese != words), words)


@functools.cache
def catalogues() -> list[gettext.GNUTranslations]:
    opened = []
    for package, path in CATALOGUES:
        path = Path(package.__file__).parent / path
        if path.exists():
            with path.open("rb") as file:
                opened.append(gettext.GNUTranslations(file))
    return opened


def chinese_first(html: str) -> str:
    """The left column with the group of the Chinese pages at its top, and the others folded."""
    column = BeautifulSoup(html, "html.parser")
    captions = column.select("p.caption")
    for caption in captions[1:]:
        if caption.get_text().strip() == GROUP:
            pages = caption.find_next_sibling("ul")
            captions[0].insert_before(caption.extract(), pages.extract())
            fold = column.new_tag("details", attrs={"class": "english-pages"})
            pages.insert_after(fold)
            fold.extend(list(fold.next_siblings))
            title = column.new_tag("summary")
            title.string = OTHERS
            fold.insert(0, title)
    return str(column)
