"""The site in Chinese: no page is half translated, and code and figures are the English ones."""

import importlib
import re

import pytest
import yaml
from conftest import NEEDS_BROWSER, ROOT, served

babel = pytest.importorskip("babel.messages", reason="requirements-dev.txt has it for Python 3.11")
translate = importlib.import_module("docs.site.translate")
LITERAL = re.compile(r"`[^`]*`|\]\([^)]*\)")  # inline code, and where a link leads
HAN = "[\u4e00-\u9fff]"
PLAYER = ROOT / "docs/player"


def catalogue(**messages):
    made = babel.Catalog(locale="zh_CN")
    for english, chinese in messages.items():
        made.add(english, chinese)
    return made


@pytest.fixture
def page(tmp_path, monkeypatch):
    """A page with two messages, both of them translated."""
    monkeypatch.setattr(translate, "CATALOGUES", tmp_path / "LC_MESSAGES")
    translate.update("page", catalogue(One="", Two=""))
    text = translate.path_of("page").read_text(encoding="utf-8")
    for chinese in ("一", "二"):
        text = text.replace('msgstr ""', f'msgstr "{chinese}"', 1)
    translate.path_of("page").write_text(text, encoding="utf-8")
    return "page"


def test_a_page_is_finished_if_each_message_is_translated_and_has_not_changed(page):
    assert translate.unfinished(page, catalogue(One="", Two="")) == []
    assert translate.unfinished(page, catalogue(One="", Two="", Three="")) == ["Three"]
    changed = catalogue(**{"One": "", "Two!": ""})
    assert translate.unfinished(page, changed) == ["Two!"]
    translate.update(page, changed)  # now it is in the catalogue, with the stale translation
    assert "#, fuzzy" in translate.path_of(page).read_text(encoding="utf-8")
    assert translate.unfinished(page, changed) == ["Two!"]


def test_stale_lists_these_messages(page, monkeypatch, capsys):
    monkeypatch.setattr(translate, "PAGES", (page,))
    monkeypatch.setattr(translate, "messages", lambda folder: {page: catalogue(One="", Three="")})
    monkeypatch.setattr("sys.argv", ["translate.py", "--stale"])
    translate.main()
    assert capsys.readouterr().out.splitlines()[-1] == "page: Three"


def test_questions_and_answers_that_unfold_are_messages():
    page = "<details><summary>A?</summary>It is\n   B.</details> <summary>C?</summary>\n\nText"
    found = []
    translate.change_html(page, found.append)
    assert found == ["A?", "It is B.", "C?"]
    chinese = {"A?": "甲？", "It is B.": "乙。", "C?": "丙？"}
    assert translate.change_html(page, chinese.get) == (
        "<details><summary>甲？</summary>乙。</details> <summary>丙？</summary>\n\nText"
    )


def pairs(page):
    """The English and the Chinese text of each message that is up to date."""
    for message in translate.translated(page):
        if message.id and message.string and not message.fuzzy:
            yield message.id, message.string


@pytest.mark.parametrize("page", translate.PAGES)
def test_code_links_and_figures_are_those_of_the_english_message(page):
    for english, chinese in pairs(page):
        assert sorted(LITERAL.findall(english)) == sorted(LITERAL.findall(chinese)), english
        assert set(re.findall(r"\d+", english)) == set(re.findall(r"\d+", chinese)), english
        assert english.count("**") == chinese.count("**"), english


def test_the_words_of_the_player():
    """docs/player/words.yml has what the scripts show; both languages have the same gaps."""
    table = yaml.safe_load((PLAYER / "words.yml").read_text(encoding="utf-8"))
    frames = [(frame[1], frame[2:]) for story in table["stories"].values() for frame in story]
    for key, (english, chinese) in [*table["words"].items(), *frames]:
        places = [set(re.findall(r"\{\w+\}", text)) - {"{title}"} for text in (english, chinese)]
        assert places[1] == places[0] or key.startswith("title-"), key
        assert not re.search(f"{HAN}[A-Za-z0-9]|[A-Za-z0-9]{HAN}", chinese), chinese  # a blank
    scripts = "".join(path.read_text() for path in sorted(PLAYER.glob("*.js")))
    used = set(re.findall(r'say\(\s*(?:[^"()]*\? )?"([\w-]+)"', scripts))
    assert len(used) > 20 and used <= set(table["words"]), used - set(table["words"])
    assert len(scripts.splitlines()) <= 980


# ---------------------------------------------------------------- the site


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Both sites, with all that the catalogues have, even where the English has changed since."""
    folder = tmp_path_factory.mktemp("chinese")
    translate.build(folder, list(translate.PAGES))  # exits if there is a warning
    return folder


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_make_site_zh(site):
    from test_site import Page, dead_links

    assert not dead_links(site)
    for page in translate.PAGES:
        name = "index" if page == "README" else page
        ours, theirs = (site / f"{folder}{name}.html" for folder in ("", "zh/"))
        code = [
            re.findall(r"<pre>.*?</pre>", path.read_text(), re.DOTALL) for path in (ours, theirs)
        ]
        assert code[0] == code[1]
        links = [[link for link in Page(path).links if "zh/" in link] for path in (ours, theirs)]
        assert len(links[0]) == 1 and not links[1]
        assert Page(theirs).language == "zh-CN"
        assert "PyTorch 数据并行训练" in "".join(Page(theirs).text), "the site's name"
        assert re.search("[\u4e00-\u9fff]{4}", "".join(Page(theirs).text))


@pytest.mark.slow
def test_the_listings_are_built_once(site):
    assert (site / "03_ddp_spawn/train.html").exists()
    assert not [path for path in ROOT.glob("0*/**/*.py") if (site / "zh" / twin(path)).exists()]
    assert not list((site / "zh/docs/timings").rglob("*.json"))
    assert not (site / "zh/_images").exists() and not (site / "zh/_sources").exists()
    assert "../../03_ddp_spawn/train.html" in (site / "zh/03_ddp_spawn/README.html").read_text()


def twin(path):
    return path.relative_to(ROOT).with_suffix(".html")


SEARCHES = {  # words of a reader -> pages, one of which has to be among the first three
    "超时": ["docs/messages"],
    "数据并行": ["index", "02_dp/README", "docs/glossary"],
    "端口被占用": ["docs/messages"],
    "环形 allreduce": ["docs/glossary", "05_multinode/README"],
    "nccl 超时": ["docs/messages"],
}


@pytest.fixture(scope="module")
def address(site):
    with served(site) as address:
        yield address


@NEEDS_BROWSER
@pytest.mark.slow
@pytest.mark.parametrize("words", SEARCHES)
def test_the_chinese_search_finds_the_page(chromium, address, words):
    from test_site import FOUND

    chromium.get(f"{address}/zh/search.html")
    found = chromium.execute_script(FOUND, words)
    assert {page for page, _ in found[:3]} & set(SEARCHES[words]), found[:6]
    severe = [entry for entry in chromium.get_log("browser") if entry["level"] == "SEVERE"]
    assert severe == []


@NEEDS_BROWSER
@pytest.mark.slow
def test_the_chinese_pages_in_the_browser(chromium, address):
    from test_site import complaints, results

    chromium.get(f"{address}/zh/search.html?q=超时")
    assert "#" in results(chromium)[0][0], "a result leads to its section"
    for page in ("index", "docs/messages", "docs/glossary", "03_ddp_spawn/README"):
        assert not complaints(chromium, f"{address}/zh", page)
